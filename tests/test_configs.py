"""Every shipped configuration loads, and the paper's file is the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from pivotopd.config import PretrainedStudent, RunConfig
from pivotopd.config_files import load_config

FOLDER = Path(__file__).resolve().parent.parent / "configs"
CONFIGS = sorted(path for path in FOLDER.glob("*.yaml") if not path.name.startswith("compare-"))
"""Runs; experiment files, which lie beside them, are another form."""


def test_there_are_configs() -> None:
    assert {path.name for path in CONFIGS} >= {"demo.yaml", "alfworld-qwen3-1.7b.yaml"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_loads_and_takes_an_override(path: Path) -> None:
    assert load_config(path).seed == 0
    assert load_config(path, ["seed=7", "method=grpo"]).method.name == "grpo"


@pytest.mark.parametrize(("name", "model"), [("1.7b", "Qwen3-1.7B"), ("8b", "Qwen3-8B")])
def test_the_papers_files_change_only_what_a_user_must_give(name: str, model: str) -> None:
    paper = load_config(next(path for path in CONFIGS if path.name == f"alfworld-qwen3-{name}.yaml"))
    plain = RunConfig(
        student=PretrainedStudent(path=f"models/{model}"),
        environment={"games": "data/alfworld"},
        update={"dtype": "bfloat16"},
    )
    assert paper == plain
