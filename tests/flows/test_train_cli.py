"""What ``pivotopd train`` says and refuses before any work."""

from __future__ import annotations

import importlib.util
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from flows.cli import app
from pivotopd.config_files import dump_config
from pivotopd.exits import run_command
from stages.runner import perform
from stages.runs import open_run
from tests.small_student import small_config

DATED = "{{ strftime_now('%d %b %Y') }}\n{{ messages[0].content }}"
TRIMMING = "{{ messages[-1].content | trim }}\n"


def train(student: Path, root: Path, *more: str) -> int:
    arguments = ["train", f"student={{kind: pretrained, path: {student}}}", "iterations=1", f"root={root}"]
    arguments += ["environment.generated={train: 2, valid: 2, test: 2}"]
    return run_command(lambda: app([*arguments, *more], standalone_mode=False))


def templated(folder: Path, source: Path, template: str) -> Path:
    shutil.copytree(source, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_dry_run_says_what_the_templates_do(
    student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = templated(tmp_path / "teacher", student, TRIMMING)
    local = f"teacher={{kind: local, path: {teacher}, prompt_tokens: 2048, reply_tokens: 256}}"
    assert train(student, tmp_path / "root", local, "--dry-run") == 0
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    own, other = lines.index("prompts of the student:"), lines.index("prompts of the teacher:")
    assert lines[own + 1].startswith("  chat template: none; a prompt is the message as plain text")
    assert any(line.startswith("  system role: ignored; none is sent") for line in lines[other:])
    assert any(line.startswith("  white space around a message: trimmed; ") for line in lines[other:])
    assert any(line.startswith("label 0000") for line in printed.out.splitlines())
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_a_template_without_a_rule_is_refused_before_anything_is_written(
    options: list[str], whose: str, student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dated = templated(tmp_path / "dated", student, DATED)
    local = f"teacher={{kind: local, path: {dated}, prompt_tokens: 2048, reply_tokens: 256}}"
    if whose == "student":
        code = train(dated, tmp_path / "root", *options)
    else:
        code = train(student, tmp_path / "root", local, *options)
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert "it writes the date or the time into the prompt" in shown.err
    assert str(dated) in shown.err
    assert "mend:" in shown.err
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("asks", "key"),
    [
        (
            "teacher={{kind: local, path: {0}, engine: vllm, prompt_tokens: 9, reply_tokens: 9}}",
            "teacher.engine",
        ),
        ("engine={{kind: vllm, fallback: transformers}}", "engine.kind"),
    ],
)
def test_an_engine_that_is_missing_is_told_before_any_work(
    asks: str,
    key: str,
    student: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else found(name))
    assert train(student, tmp_path / "root", asks.format(student)) == 2
    shown = capsys.readouterr()
    assert "vLLM is not installed" in shown.err
    assert f"where: {key}" in shown.err
    assert "pip install 'pivotopd[vllm]'" in shown.err
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("cut", ["top_k: 20", "top_p: 0.9", "min_p: 0.1", "repetition_penalty: 1.1"])
def test_sampling_that_cuts_the_distribution_is_refused_with_the_reason(
    cut: str, student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(student, tmp_path / "root", "engine={kind: vllm}", f"rollout={{{cut}}}") == 2
    said = capsys.readouterr().err
    assert f"{cut.split(':', maxsplit=1)[0]}: rollouts are drawn from the whole distribution" in said
    assert "did you mean" not in said
    assert not (tmp_path / "root").exists()


def test_a_tiny_student_that_cannot_read_its_prompts_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``pivotopd train`` without a file: the defaults are the paper's, and its student is no tiny one."""
    monkeypatch.chdir(tmp_path)
    assert run_command(lambda: app(["train"], standalone_mode=False)) == 2
    assert "where: environment.prompt" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def rolled_out(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored configuration of a run with a rollout."""
    root = tmp_path_factory.mktemp("root")
    work, plan = open_run(small_config(root, student))
    with closing(work):
        perform(work, plan.job("rollout", 0))
    return root / "small" / "config.yaml"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ([], []),
        (["update.learning_rate=1e-6"], ["other settings than in its config.yaml: update.learning_rate"]),
        (["seed=3"], ["other settings than in its config.yaml: seed", "rollout 0000       will be redone"]),
    ],
)
def test_other_settings_under_the_name_of_a_run_are_said(
    change: list[str], said: list[str], rolled_out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(rolled_out), *change, "--dry-run"]
    assert run_command(lambda: app(command, standalone_mode=False)) == 0
    words = ("other settings", "will be redone")
    lines = [line for line in capsys.readouterr().out.splitlines() if any(word in line for word in words)]
    assert len(lines) == len(said)
    assert all(one in line for line, one in zip(lines, said, strict=True))


def test_a_stored_configuration_that_cannot_be_read_is_said(
    student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.yaml").write_text("nonsense: 1\n")
    (tmp_path / "mine.yaml").write_text(dump_config(small_config(tmp_path, student)))
    command = ["train", str(tmp_path / "mine.yaml"), "--dry-run"]
    assert run_command(lambda: app(command, standalone_mode=False)) == 0
    assert "small: its config.yaml cannot be read and is replaced" in capsys.readouterr().out
