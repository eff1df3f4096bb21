"""``pivotopd inspect``: a run's artifacts, and an episode with what the teacher said and recovery did."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from flows import inspect_cli
from flows.cli import app
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.ledger import FIELDS
from pivotopd.records import Advantage, Chain, Label, Turn
from stages.runs import open_run
from tests.small_student import small_config
from tests.stages.conftest import StoredRun


@pytest.fixture(scope="module")
def run(student: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """One iteration of PivotOPD on games that the student often loses."""
    made = StoredRun(tmp_path_factory.mktemp("inspected") / "root")
    open_run(small_config(made.root, student, rollout__tasks=4, rollout__group_size=4, recovery__limit=16))
    made.run("rollout", 0, follow=True)
    return made


def inspect(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def shown(*arguments: object) -> list[str]:
    result = inspect(*arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def mean(values: Sequence[float]) -> str:
    return f"advantage {sum(values) / max(1, len(values)):+.4f}"


def recovered(run: StoredRun) -> tuple[Label, list[Turn], Chain]:
    """A pivotal turn with its branch."""
    recover, labels = run.artifact("recover", 0), run.artifact("label", 0).rows(Label)
    chain = next(one for one in recover.rows(Chain) if one.accepted)
    branch = [one for one in recover.rows(Turn) if (one.episode, one.pivot_turn) == key(chain)]
    return next(one for one in labels if (one.episode, one.turn) == key(chain)), branch, chain


def key(chain: Chain) -> tuple[str, int | None]:
    return chain.episode, chain.pivot_turn


def test_a_run_is_a_line_an_artifact(run: StoredRun) -> None:
    lines = shown(run.uri)
    for stage in ("rollout", "label", "recover", "update"):
        assert any(stage in line and run.artifact(stage, 0).digest[:12] in line for line in lines)


def test_the_bill_is_the_sum_of_the_manifests(run: StoredRun) -> None:
    stages = ("rollout", "label", "recover", "update")
    stored = [run.artifact(stage, 0).manifest for stage in stages]
    bill = json.loads(inspect(run.uri, "--iteration", 0, "--cost", "--json").stdout)
    assert [one["iteration"] for one in bill["iterations"]] == [0]
    assert list(bill["stages"]) == list(stages)
    for name in FIELDS.keys() - {"teacher_cost_millionths"}:
        assert bill["total"]["counts"][name] == sum(one.counts[name] for one in stored), name
        for stage, manifest in zip(stages, stored, strict=True):
            assert bill["stages"][stage]["counts"][name] == manifest.counts[name]
    assert bill["total"]["teacher_cost"] is None
    assert bill["total"]["total_s"] == pytest.approx(sum(sum(one.seconds.values()) for one in stored))
    assert bill["stages"]["update"]["training_padding_share"] == 0, "rows are packed"
    whole = json.loads(inspect(run.uri, "--cost", "--json").stdout)
    assert whole == bill, "the run has one iteration"


def test_the_bill_for_a_person_has_a_column_a_stage(run: StoredRun) -> None:
    lines = shown(run.uri, "--cost")
    counts = [run.artifact(stage, 0).manifest.counts for stage in ("rollout", "label", "recover", "update")]
    steps = [one["env_steps"] for one in counts]
    cells = [f"{value:,}" if value else "-" for value in (*steps, sum(steps))]
    row = next(line for line in lines if " env_steps " in line)
    assert [cell.strip() for cell in row.split("│")][3:-1] == cells
    assert any("engine padding and idle" in line and "%" in line for line in lines)
    assert not any("teacher_calls" in line for line in lines), "an oracle is not called"


def test_the_bill_refuses_what_it_does_not_know(run: StoredRun) -> None:
    assert isinstance(inspect(run.uri, "--cost", "--iteration", 9).exception, ArtifactError)
    assert isinstance(inspect(run.uri, "--json").exception, ConfigError)
    assert isinstance(inspect(run.uri, "--cost", "--episode", "0000/000/00").exception, ConfigError)


def test_an_episode_shows_pivot_gold_action_hint_recovery_and_advantages(run: StoredRun) -> None:
    label, branch, chain = recovered(run)
    advantages = [one for one in run.artifact("update", 0).rows(Advantage) if one.episode == label.episode]
    lines = shown(run.uri, "--episode", label.episode)
    played = [one for one in run.artifact("rollout", 0).rows(Turn) if one.episode == label.episode]
    outcome = [one for one in advantages if one.source == "rollout"]
    for turn, one in zip(played, outcome, strict=True):
        assert any(f"> {turn.action}" in line and mean(one.total) in line for line in lines)
    at = next(
        i for i, line in enumerate(lines) if line.startswith(f"pivotal: gold action {label.gold_action}")
    )
    pivot = next(one for one in outcome if one.turn == label.turn)
    assert lines[at + 1] == f"gold hint: {mean(pivot.prevention)}, part of the turn's"
    end = next(
        i for i, line in enumerate(lines) if line.startswith(f"recovery ended by {chain.stopped}") and i > at
    )
    for number, row in enumerate(branch):
        one = next(a for a in advantages if (a.turn, a.pivot_turn) == (row.turn, row.pivot_turn))
        block = lines[at + 2 + 3 * number : end]
        assert block[0].startswith(f"recovery {row.depth} ")
        assert block[1] == f"hint {row.gold_action}"
        assert block[2] == f"> {row.action} {mean(one.total)}"


def test_an_advantage_is_green_above_zero_and_red_below() -> None:
    for values, colour in (([0.5, 0.1], "32"), ([-0.5, 0.1], "31")):
        out = io.StringIO()
        Console(file=out, force_terminal=True, color_system="standard").print(inspect_cli._colour(values))
        assert f"\x1b[{colour}madvantage" in out.getvalue()
    assert inspect_cli._colour([]) == "[dim]advantage +0.0000[/dim]"


def test_a_hint_that_named_nothing_is_not_shown_as_one(run: StoredRun) -> None:
    label, branch, _ = recovered(run)
    run.run("recover", 0, "method.hint=reflection", follow=True)
    lines = shown(run.uri, "--episode", label.episode)
    assert not any(line.startswith(f"hint {branch[0].gold_action}") for line in lines)
    assert any(line.startswith("hint without an action, where the teacher named") for line in lines)


def test_an_iteration_that_contradicts_the_episode_is_a_mistake(run: StoredRun) -> None:
    result = inspect(run.uri, "--iteration", 1, "--episode", "0000/000/00")
    assert isinstance(result.exception, ConfigError)
    assert result.exception.what == "episode 0000/000/00 is of iteration 0, not of 1"
    assert inspect(run.uri, "--iteration", 0, "--episode", "0000/000/00").exit_code == 0


def test_what_does_not_exist_is_named(run: StoredRun) -> None:
    assert isinstance(inspect(run.uri, "--episode", "first").exception, ConfigError)
    for missing in (["--episode", "0000/099/00"], ["--episode", "0009/000/00"], ["--iteration", "9"]):
        assert isinstance(inspect(run.uri, *missing).exception, ArtifactError)
