"""Episodes that the oracle begins: who plays which turn, and that only the student's turns are rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pivotopd.environments.base import Task, TaskOracle
from pivotopd.errors import ConfigError, SearchLimit
from pivotopd.expert import with_beginnings
from pivotopd.rollout import Job
from tests import play

TASKS = play.environment().tasks("train")


def begun(jobs: Sequence[Job], tail_turns: int, max_turns: int = play.MAX_TURNS) -> list[Job]:
    return with_beginnings(play.environment(), jobs, tail_turns=tail_turns, max_turns=max_turns).jobs


@pytest.mark.parametrize("tail", [1, 2, 3])
def test_the_student_plays_the_last_turns_of_a_shortest_way(tail: int) -> None:
    jobs = play.jobs_of(TASKS[:2], samples=2)
    found = with_beginnings(play.environment(), jobs, tail_turns=tail, max_turns=play.MAX_TURNS)
    ways = {job.seed: play.plan(job.task) for job in jobs}
    assert found.counts == {
        "expert_turns": sum(len(way) - tail for way in ways.values()),
        "expert_unsolved": 0,
    }
    whole = play.played(play.player(play.script(ways)), jobs)
    # the script gives the action of a turn by its number: the student only has to end what was begun
    for episode, one in play.played(play.player(play.script(ways)), found.jobs).items():
        before = whole[episode].turns
        assert one.episode.won
        assert one.turns == before[len(before) - tail :], "prompts, states and turn numbers are the same"
        assert one.episode.turns == tail


def test_a_way_that_is_no_longer_than_its_tail_is_the_student_s() -> None:
    (job,) = play.jobs_of(TASKS[:1])
    length = len(play.plan(job.task))
    for tail in (length, length + 5):
        assert begun([job], tail) == [job]
    (one,) = begun([job], length - 1)
    assert one.start is not None
    assert [turn.action for turn in one.start.turns] == play.plan(job.task)[:1]


def test_the_turn_limit_counts_the_expert_s_turns() -> None:
    (job,) = play.jobs_of(TASKS[:1])
    (one,) = begun([job], 2, max_turns=3)
    assert one.start is not None
    assert len(one.start.turns) == 1
    (lost,) = play.player(play.wander, max_turns=3).play([one])
    assert [turn.turn for turn in lost.turns] == [1, 2]
    assert lost.episode.termination == "turn_limit"


def test_a_way_that_looks_otherwise_ends_the_episode_unplayed(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = play.jobs_of(TASKS[:1])
    (one,) = begun([job], 1)
    kind = type(play.environment().open())
    genuine = kind.step
    monkeypatch.setattr(
        kind, "step", lambda self, action: replace(genuine(self, action), observation="elsewhere")
    )
    (lost,) = play.player(play.refuse).play([one])
    assert (lost.episode.termination, lost.turns) == ("environment_error", ())


@dataclass
class GivesUp:
    """An oracle that finds no way in time."""

    def distance(self, state: bytes) -> int | None:
        raise SearchLimit("too many states")

    def best_actions(self, state: bytes, view: Any) -> tuple[str, ...]:
        raise SearchLimit("too many states")


def test_a_task_that_the_oracle_gives_up_is_counted_and_played_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = play.environment()
    known = environment.oracle

    def oracle(task: Task) -> TaskOracle:
        return GivesUp() if task.id == TASKS[0].id else known(task)

    monkeypatch.setattr(environment, "oracle", oracle)
    jobs = play.jobs_of(TASKS[:2], samples=2)
    found = with_beginnings(environment, jobs, tail_turns=1, max_turns=play.MAX_TURNS)
    assert found.counts["expert_unsolved"] == 2
    assert [job.start is None for job in found.jobs] == [job.task.id == TASKS[0].id for job in jobs]


def test_an_environment_without_stored_states_has_no_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = play.environment()
    env = environment.open()
    monkeypatch.setattr(type(env), "dump", lambda _self: None)
    with pytest.raises(ConfigError, match="stores none"):
        with_beginnings(environment, play.jobs_of(TASKS[:1]), tail_turns=1, max_turns=9)
