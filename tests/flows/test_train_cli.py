"""What ``pivotopd train`` says and refuses before any work."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from flows.cli import app
from pivotopd.exits import run_command

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


def test_an_engine_that_is_missing_is_told_before_any_work(
    student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else found(name))
    local = f"teacher={{kind: local, path: {student}, engine: vllm, prompt_tokens: 9, reply_tokens: 9}}"
    assert train(student, tmp_path / "root", local, "--dry-run") == 2
    shown = capsys.readouterr()
    assert "vLLM is not installed" in shown.err
    assert "where: teacher.engine" in shown.err
    assert "pip install 'pivotopd[vllm]'" in shown.err
