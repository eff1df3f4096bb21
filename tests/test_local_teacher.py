"""Whether a model folder can teach, asked before its weights are read; and that it is loaded as it should."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pivotopd.config import RunConfig
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.local_teacher import check_engine, check_local_teacher, load_local_teacher
from pivotopd.models.base import Sampling
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.prompt_check import check_prompts
from pivotopd.teacher.chat import Ask
from pivotopd.teacher.model_chat import ModelChat
from pivotopd.teacher_section import LocalSection
from stages.runs import open_run
from tests.small_student import small_config


def section(path: Path, **changes: Any) -> LocalSection:
    return LocalSection(path=str(path), **{"prompt_tokens": 256, "reply_tokens": 32} | changes)


def templated(folder: Path, source: Path, template: str) -> Path:
    shutil.copytree(source, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_the_folder_is_checked_without_its_weights(larger: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(larger, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    assert check_local_teacher(section(bare)) == bare
    with pytest.raises(ArtifactError, match="no such model folder") as caught:
        check_local_teacher(section(tmp_path / "none"))
    assert caught.value.mend is not None
    assert "teacher.path" in caught.value.mend


def test_prompt_and_reply_must_fit_the_model(larger: Path) -> None:
    limit = json.loads((larger / "config.json").read_text())["max_position_embeddings"]
    assert check_local_teacher(section(larger, prompt_tokens=limit - 32))
    with pytest.raises(ConfigError, match=f"up to {limit + 1} tokens .* limit {limit}"):
        check_local_teacher(section(larger, prompt_tokens=limit - 31))


def test_only_an_engine_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch, larger: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_engine(section(larger))
    with pytest.raises(ConfigError, match="vLLM is not installed") as caught:
        check_engine(section(larger, engine="vllm"))
    assert caught.value.where == "teacher.engine"


def test_it_answers_under_the_name_of_its_content(larger: Path) -> None:
    loaded = load_local_teacher(section(larger, concurrency=2), "ab" * 32, token_budget=512)
    assert isinstance(loaded.speaker.generator, TransformersEngine)
    assert loaded.speaker.generator.max_batch == 2
    chat = ModelChat(loaded.speaker, Sampling(1.0, 16), 64, 0)
    asks = [Ask("go to mug 1"), Ask("look"), Ask("x " * 200)]
    first, second, long = chat.ask(asks)
    assert (chat.name, chat.where) == ("local abababababab", str(larger))
    assert first.text is not None
    assert second.text is not None
    assert long.text is None
    assert chat.ask([asks[1]]) == [second], "neighbours do not matter"
    assert chat.spent.teacher_calls == 3
    assert chat.spent.teacher_prompts_too_long == 1
    assert 0 < chat.spent.teacher_reply_tokens <= 3 * 16
    assert chat.spent.teacher_prompt_tokens > 0
    loaded.close()


# ------------------------------------------------------------------ templates of a run


def test_the_templates_of_student_and_teacher_are_found_and_kept(student: Path, tmp_path: Path) -> None:
    teacher = templated(tmp_path / "chat", student, "{{ messages[-1].content | trim }}\n")
    local = {"kind": "local", "path": str(teacher)}
    config = small_config(tmp_path / "root", student, teacher=local)
    found = check_prompts(config)
    assert not found.student.template
    assert found.teacher is not None
    assert (found.teacher.template, found.teacher.edges) == (True, "trimmed")
    lines = list(found.lines)
    assert lines[0] == "prompts of the student:"
    assert "prompts of the teacher:" in lines
    assert any("white space around a message: trimmed; the message is put into" in line for line in lines)
    open_run(config)
    kept = json.loads((tmp_path / "root/small/templates.json").read_text())
    assert kept == json.loads(json.dumps(found.values))
    assert kept["student"]["template"] is False
    assert kept["teacher"]["edges"] == "trimmed"


def test_a_tiny_student_and_an_endpoint_have_nothing_to_probe() -> None:
    endpoint = {"kind": "endpoint", "base_url": "http://h/v1", "model": "m"}
    found = check_prompts(RunConfig.model_validate({"teacher": endpoint}))
    assert not found.student.template
    assert found.teacher is None


@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_a_template_without_a_rule_stops_a_run_before_anything_is_written(
    whose: str, student: Path, tmp_path: Path
) -> None:
    dated = templated(tmp_path / "dated", student, "{{ strftime_now('%d') }}{{ messages[-1].content }}")
    local = {"kind": "local", "path": str(dated if whose == "teacher" else student)}
    config = small_config(tmp_path / "root", dated if whose == "student" else student, teacher=local)
    with pytest.raises(ConfigError, match="the date or the time") as caught:
        open_run(config)
    assert str(dated) in str(caught.value.where)
    assert not (tmp_path / "root").exists()


def test_a_missing_student_is_told_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such model folder") as caught:
        open_run(small_config(tmp_path / "root", tmp_path / "none"))
    assert caught.value.mend == "set student.path to a folder of a model"
