"""Evaluation: figures worked out by hand, panels that depend on neither order nor batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pivotopd.environments.base import Task
from pivotopd.errors import EnvironmentFault
from pivotopd.evaluation import Panel, panel_jobs, panel_of, summarise_panel, unbroken
from pivotopd.records import Episode, Turn
from pivotopd.rollout import Played
from tests import play

TASKS = tuple(play.environment().tasks("valid"))


def episode(name: str, *, won: bool, turns: int, family: str = "a", group: str = "g") -> Episode:
    return Episode(
        run="test", iteration=2, episode=name, task="t", task_hash="h", family=family, group=group, sample=0,
        seed=1, episode_return=10.0 * won, won=won, score=float(won),
        termination="won" if won else "turn_limit", error=None, turns=turns, environment="e",
        data_fingerprint="d", policy="p",
    )  # fmt: skip


def result(name: str, turns: Sequence[Turn], *, won: bool, family: str = "a") -> Played:
    return Played(episode(name, won=won, turns=len(turns), family=family), tuple(turns))


# ---------------------------------------------------------------------- the panel


def test_the_figures_of_a_panel_by_hand() -> None:
    good, odd = play.made_turn(0), play.made_turn(1, action="fly", valid=False)
    open_ended = play.made_turn(2, admissible=None, action="search[x]", valid=False)
    panel = [
        result("1", [good], won=True, family="a"),
        result("2", [good, odd], won=False, family="a"),
        result("3", [good, good, good, odd], won=False, family="a"),
        result("4", [good, open_ended], won=True, family="b"),
        result("5", [], won=False, family="a"),
    ]
    expected = Panel(
        episodes=5,
        success=2 / 5,
        success_by_family={"a": 1 / 4, "b": 1.0},
        family_mean=(1 / 4 + 1) / 2,
        turns_mean=9 / 5,
        admissible_share=6 / 8,
        valid_share=6 / 9,
    )
    assert summarise_panel(panel) == expected
    assert summarise_panel(reversed(panel)) == expected
    assert list(summarise_panel(reversed(panel)).success_by_family) == ["a", "b"]


def test_an_empty_panel_divides_by_nothing() -> None:
    assert summarise_panel([]) == Panel(0, 0.0, {}, 0.0, 0.0, 0.0, 0.0)


def test_panel_seeds_depend_on_task_and_sample_alone() -> None:
    jobs = panel_jobs(TASKS, samples=3, seed=7)
    assert len(jobs) == 12
    assert len({job.seed for job in jobs}) == len({job.episode for job in jobs}) == 12
    assert panel_jobs(TASKS, samples=2, seed=7) == [job for job in jobs if job.sample < 2]
    assert panel_jobs(TASKS[2:], samples=3, seed=7) == jobs[6:]
    assert not {job.seed for job in panel_jobs(TASKS, samples=3, seed=8)} & {job.seed for job in jobs}


def test_a_panel_depends_on_neither_order_nor_batch() -> None:
    jobs = panel_jobs(TASKS, samples=2, seed=7)
    whole = summarise_panel(play.player(play.wander).play(jobs))
    shuffled = random.Random(1).sample(jobs, len(jobs))
    assert summarise_panel(play.player(play.wander, batch=3).play(shuffled)) == whole
    assert whole.episodes == 8
    assert 0 < whole.valid_share < 1
    assert 0 < whole.admissible_share < 1


def test_broken_episodes_are_refused() -> None:
    whole = [result(name, [], won=False) for name in "cab"]
    assert [one.episode.episode for one in unbroken(whole, "replays")] == ["a", "b", "c"]
    broken = Played(replace(whole[0].episode, termination="environment_error", error="it fell"), ())
    with pytest.raises(EnvironmentFault, match=r"1 of 3 replays broke off: it fell") as caught:
        unbroken([broken, *whole[1:]], "replays")
    assert caught.value.where == "c"


def test_a_panel_keeps_the_types_shares_where_they_take_turns_in_the_ids() -> None:
    families = ("a", "b", "c", "d")
    tasks = [
        Task(f"{index:06d}-{families[index % 4]}", "alfworld", "valid", families[index % 4], "hash", None)
        for index in range(128)
    ]
    for count in (4, 8, 16, 32, 64, 128):
        panel = panel_of(tasks, count)
        assert Counter(task.family for task in panel) == dict.fromkeys(families, count // 4)
        assert panel == sorted(panel, key=lambda task: task.id)
        assert panel == panel_of(tasks[::-1], count)
