"""Whether a larger model can score the student's tokens, asked of folders alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pivotopd.config import RunConfig, TinyStudent
from pivotopd.environments.alfworld.wording import phrases
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.larger_teacher import check_larger_teacher
from pivotopd.models.checkpoint import make_policy, model_facts, save_policy
from pivotopd.models.tiny import build_model, build_tokenizer
from tests.small_student import small_config


def with_larger(student: Path, larger: Path | None, **changes: object) -> RunConfig:
    path = None if larger is None else str(larger)
    return small_config(Path("root"), student, method={"name": "opd"}, larger_teacher__path=path, **changes)


def other_model(folder: Path, *more: str) -> Path:
    """A model whose tokenizer knows further phrases."""
    tokenizer = build_tokenizer([*phrases(), *more])
    save_policy(make_policy(build_model(TinyStudent(layers=1), tokenizer, 0), tokenizer), folder)
    return folder


def changed(larger: Path, folder: Path, **values: object) -> Path:
    """A copy of a model whose config.json says something else."""
    shutil.copytree(larger, folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


def test_a_model_with_the_student_s_tokenizer_is_taken(student: Path, larger: Path) -> None:
    assert check_larger_teacher(with_larger(student, larger)) == larger
    assert check_larger_teacher(with_larger(student, student)) == student
    assert model_facts(larger).tokenizer == model_facts(student).tokenizer


def test_a_tiny_student_is_compared_before_it_is_made(larger: Path, tmp_path: Path) -> None:
    tiny = RunConfig.model_validate({"method": "opd", "larger_teacher": {"path": str(larger)}})
    assert check_larger_teacher(tiny) == larger
    other = other_model(tmp_path / "other", "a phrase of its own")
    refused = tiny.model_copy(update={"larger_teacher": with_larger(larger, other).larger_teacher})
    with pytest.raises(ConfigError, match="of the tiny student"):
        check_larger_teacher(refused)


def test_another_tokenizer_is_refused_with_both_named(student: Path, tmp_path: Path) -> None:
    other = other_model(tmp_path / "other", "a phrase of its own")
    with pytest.raises(ConfigError) as caught:
        check_larger_teacher(with_larger(student, other))
    for folder in (student, other):
        assert f"{model_facts(folder).tokenizer[:12]} of {folder}" in caught.value.what
    assert caught.value.where == "larger_teacher.path"
    assert caught.value.mend


def test_another_chat_template_is_another_tokenizer(student: Path, larger: Path, tmp_path: Path) -> None:
    folder = changed(larger, tmp_path / "chat")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ConfigError, match="tokenizer is not the student's"):
        check_larger_teacher(with_larger(student, folder))


def test_a_head_must_know_every_token_that_the_student_can_sample(
    student: Path, larger: Path, tmp_path: Path
) -> None:
    rows = model_facts(student).head_rows
    wide = changed(larger, tmp_path / "wide", vocab_size=rows + 64)
    assert check_larger_teacher(with_larger(student, wide)) == wide
    narrow = changed(larger, tmp_path / "narrow", vocab_size=rows - 1)
    with pytest.raises(ConfigError, match=f"logits for {rows - 1} tokens .* can sample {rows}"):
        check_larger_teacher(with_larger(student, narrow))


def test_the_longest_input_must_fit(student: Path, larger: Path, tmp_path: Path) -> None:
    longest = 256 + 48
    fits = changed(larger, tmp_path / "fits", max_position_embeddings=longest)
    assert check_larger_teacher(with_larger(student, fits)) == fits
    short = changed(larger, tmp_path / "short", max_position_embeddings=longest - 1)
    with pytest.raises(ConfigError, match=f"up to {longest} tokens"):
        check_larger_teacher(with_larger(student, short))


def test_without_a_model_the_key_is_named(student: Path) -> None:
    with pytest.raises(ConfigError, match="opd needs a larger model") as caught:
        check_larger_teacher(with_larger(student, None))
    assert caught.value.where == "larger_teacher.path"


def test_a_folder_that_is_not_there_is_an_input_error(student: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such model folder"):
        check_larger_teacher(with_larger(student, tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match=r"no config\.json"):
        check_larger_teacher(with_larger(student, tmp_path / "empty"))
