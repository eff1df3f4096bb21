"""Every shipped configuration loads and plans, and the paper's file is the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from pivotopd.config import PretrainedStudent, RunConfig
from pivotopd.config_files import load_config
from pivotopd.environments.alfworld.games import write_games
from pivotopd.environments.alfworld.generator import generate_games
from pivotopd.methods.registry import make_method

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


SCALE = ("scale-4xh100-qwen3-1.7b.yaml", "scale-8xh100-qwen3-8b.yaml", "scale-two-nodes.yaml")


@pytest.mark.parametrize("name", SCALE)
def test_the_files_for_several_gpus_change_how_the_papers_recipe_is_run_and_not_the_recipe(name: str) -> None:
    scale = load_config(FOLDER / name)
    paper = load_config(FOLDER / f"alfworld-qwen3-{'1.7b' if '1.7b' in name else '8b'}.yaml")
    for section in ("environment", "student", "rollout", "recovery", "method", "evaluation", "iterations"):
        assert getattr(scale, section) == getattr(paper, section), section
    how = {"ranks", "zero_stage", "gradient_checkpointing", "micro_batch_tokens"}
    assert scale.update.model_dump(exclude=how) == paper.update.model_dump(exclude=how)
    assert scale.teacher.kind == "endpoint"
    assert scale.update.ranks > 1
    assert f"pivotopd train configs/{name}" in (FOLDER.parent / "docs" / "scale.md").read_text()
    ports = [int(url.rpartition(":")[2]) for url in scale.engine.urls]
    assert ports == list(range(8801, 8801 + len(ports)))


@pytest.mark.parametrize("name", ["1.7b", "8b"])
def test_a_dry_run_resolves_the_papers_files_to_their_jobs(name: str, student: Path, tmp_path: Path) -> None:
    games = tmp_path / "games.parquet"
    write_games(generate_games(0, "train", 12), games)
    file = next(path for path in CONFIGS if path.name == f"alfworld-qwen3-{name}.yaml")
    arguments = [
        str(file),
        f"student.path={student}",
        f"environment.games={games}",
        f"root={tmp_path / 'runs'}",
    ]
    done = CliRunner().invoke(app, ["train", "--dry-run", *arguments])
    assert done.exit_code == 0, done.output
    stages = [line.split()[0] for line in done.stdout.splitlines()]
    assert {stage: stages.count(stage) for stage in sorted(set(stages))} == {
        "evaluate": 17, "label": 160, "recover": 160, "rollout": 160, "update": 160
    }  # fmt: skip
    assert not (tmp_path / "runs").exists()


def test_the_commands_of_the_manual_are_configurations_and_the_ablations_differ() -> None:
    root = CONFIGS[0].parent.parent
    text = (root / "docs" / "methods.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [
        line.partition("#")[0].split()[2:]
        for line in text.splitlines()
        if line.startswith("    pivotopd train configs/") and "$(" not in line
    ]
    ablations = [
        one for one in commands if one[0] == "configs/demo.yaml" and len(one) > 1 and "name=" not in one[1]
    ]
    found = set()
    for file, *overrides in commands:
        config = load_config(root / file, overrides)
        make_method(config.method, config.recovery.depth)
        if [file, *overrides] in ablations:
            found.add((config.method, config.recovery.depth))
    assert len(found) == len(ablations) == 6
    assert load_config(root / "configs/demo.yaml").method not in {method for method, _ in found}
