"""Figures of recovery by hand: each mistake counts the same, and is compared with the start policy's."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pivotopd.diagnosis.bootstrap import Interval
from pivotopd.diagnosis.figures import metrics
from pivotopd.diagnosis.mistakes import Mistake, find_mistakes
from pivotopd.diagnosis.recovery import (
    recovered_within,
    recoveries,
    recovery_jobs,
    recovery_part,
    turns_to_recover,
)
from pivotopd.records_diagnosis import Recovery
from pivotopd.rollout import Job
from tests import play

TASKS = tuple(play.environment().tasks("valid"))


def row(name: str, turns: list[int], *, replays: int = 4, optimal: int | None = 3, start: float | None = None,
        change: str | None = None) -> Recovery:  # fmt: skip
    return Recovery(
        run="r", iteration=0, policy="p", mistake=name, replays=replays, won=len(turns),
        rate=len(turns) / replays, turns=turns, turns_left=20, optimal_turns=optimal, start_rate=start,
        change=change,
    )  # fmt: skip


ROWS = [row("a", [3, 5, 9]), row("b", []), row("c", [4], replays=2, optimal=None)]


def test_the_curve_by_hand() -> None:
    curve = recovered_within(ROWS, 10)
    assert curve[2] == 0
    assert curve[3] == pytest.approx((1 / 4 + 0 + 0) / 3)
    assert curve[4] == pytest.approx((1 / 4 + 0 + 1 / 2) / 3)
    assert curve[10] == pytest.approx((3 / 4 + 0 + 1 / 2) / 3)
    assert curve == sorted(curve)
    assert recovered_within([], 3) == [0.0] * 4


def test_figures_by_hand() -> None:
    found = metrics([recovery_part(ROWS, draws=500, seed=0)])
    assert found["diagnose/recovery/mistakes"] == 3
    assert found["diagnose/recovery/replays"] == 10
    assert found["diagnose/recovery/recovered"] == 4
    assert found["diagnose/recovery/rate"] == pytest.approx((3 / 4 + 1 / 2) / 3)
    assert found["diagnose/recovery/turns"] == (3 + 5 + 9 + 4) / 4
    assert found["diagnose/recovery/optimal_turns"] == 3
    assert "diagnose/recovery/improved" not in found, "the start policy has nothing to be compared with"
    again = metrics([recovery_part(ROWS, draws=500, seed=0)])
    assert again == found


def test_turns_to_recover_draw_mistakes() -> None:
    assert turns_to_recover([row("a", [4, 4, 4]), row("b", [20])], draws=2000, seed=0) == Interval(
        8, 4, 20, 2
    )
    assert turns_to_recover([row("b", [])], draws=2000, seed=0) is None


@pytest.mark.parametrize("rows", [[], [row("a", []), row("b", [])]])
def test_nothing_recovered_leaves_cells_empty(rows: list[Recovery]) -> None:
    part = recovery_part(rows, draws=100, seed=0)
    values = {one.key: one.value for one in part.figures}
    assert values["recovery/turns"] is None
    assert values["recovery/rate"] == (0 if rows else None)
    assert part.notes


@pytest.fixture(scope="module")
def mistakes() -> list[Mistake]:
    transcripts = []
    for index, task in enumerate(TASKS):
        job = Job(f"e{index}", task, "g", 0, index)
        plan = play.lose(task, {2}, 8)
        (one,) = play.player(play.script({job.seed: plan}), max_turns=8).play([job])
        transcripts.append(play.transcript(task, one))
    found, _ = find_mistakes(play.environment(), transcripts, limit=9)
    assert len(found) == len(TASKS)
    return found


@pytest.mark.parametrize(("batch", "order"), [(1, None), (5, 3)])
def test_rows_depend_on_neither_batch_nor_order(
    mistakes: list[Mistake], batch: int, order: int | None
) -> None:
    jobs = recovery_jobs(mistakes, replays=3, seed=0, how="snapshot")
    player = play.player(play.wander)
    whole = recoveries(mistakes, player.play(jobs), player.origin, play.MAX_TURNS)
    mixed = jobs if order is None else random.Random(order).sample(jobs, len(jobs))
    again = play.player(play.wander, batch=batch).play(mixed)
    assert recoveries(mistakes[::-1], list(again)[::-1], player.origin, play.MAX_TURNS) == whole
    assert [one.turns_left for one in whole] == [play.MAX_TURNS - 3] * len(mistakes)
    assert all(one.replays == 3 and one.change is None for one in whole)


def test_against_the_start_policy(mistakes: list[Mistake]) -> None:
    """One policy follows the oracle, so it improves wherever the start did not always recover."""
    jobs = recovery_jobs(mistakes, replays=2, seed=0, how="snapshot")
    plans = {}
    for job in jobs:
        assert job.start is not None
        env = play.environment().open()
        job.start.open_at(env)
        plan = ["?"] * len(job.start.turns)
        while True:
            plan.append(play.best(job.task, env))
            if env.step(plan[-1]).done:
                break
        plans[job.seed] = plan
    player = play.player(play.script(plans))
    names = [one.transcript.episode.episode for one in mistakes]
    start = dict.fromkeys(names, 0.5) | {names[0]: 1.0}
    rows = recoveries(mistakes, player.play(jobs), player.origin, play.MAX_TURNS, start)
    assert [one.change for one in rows] == ["unchanged"] + ["improved"] * (len(rows) - 1)
    assert [list(one.turns) for one in rows] == [[one.optimal_turns] * 2 for one in rows]
    worse = [replace(one, change="worsened") if one.mistake == names[1] else one for one in rows]
    found = metrics([recovery_part(worse, draws=100, seed=0)])
    counts = [found[f"diagnose/recovery/{change}"] for change in ("improved", "worsened", "unchanged")]
    assert counts == [len(rows) - 2, 1, 1]
    assert found["diagnose/recovery/turns"] == found["diagnose/recovery/optimal_turns"]
