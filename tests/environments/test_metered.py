"""The meter against an environment that keeps its own log of what was done with it."""

from __future__ import annotations

from collections import Counter

import pytest

from pivotopd.config import EnvironmentSection
from pivotopd.environments.alfworld.environment import AlfworldEnvironment
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.base import Env, StepResult, Task
from pivotopd.environments.metered import MeteredEnvironment
from pivotopd.environments.replay import Reach, reach, replay
from pivotopd.errors import EnvironmentFault
from pivotopd.expert import with_beginnings
from pivotopd.ledger import Counts
from tests import play

TASK = play.environment().tasks("train")[0]


class Logged(AlfworldEnvironment):
    """The games of the tests; every call on an instance is written down."""

    def __init__(self) -> None:
        super().__init__(EnvironmentSection(prompt="compact", generated=play.GAMES))
        self.log: Counter[str] = Counter()

    def open(self) -> Env:
        return LoggedEnv(self.log)


class LoggedEnv(NativeEnv):
    def __init__(self, log: Counter[str]) -> None:
        super().__init__()
        self.log = log

    def reset(self, task: Task, seed: int) -> StepResult:
        self.log["reset"] += 1
        return super().reset(task, seed)

    def step(self, action: str) -> StepResult:
        self.log["step"] += 1
        return super().step(action)

    def load(self, task: Task, state: bytes) -> StepResult:
        self.log["load"] += 1
        return super().load(task, state)


def logged(inner: Logged, replays: int = 0) -> Counts:
    return Counts(
        env_resets=inner.log["reset"],
        env_steps=inner.log["step"],
        restores=inner.log["load"],
        replays=replays,
    )


def test_play_is_counted_as_it_was_done() -> None:
    inner = Logged()
    metered = MeteredEnvironment(inner)
    tasks = metered.tasks("train")
    jobs = play.jobs_of(tasks, samples=2)
    played = play.played(play.player(play.wander, env=metered, batch=3), jobs)
    assert metered.counts == logged(inner)
    assert metered.counts.env_steps == sum(len(one.turns) for one in played.values()) > 0
    assert metered.counts.env_resets == len(jobs)
    assert played == play.played(play.player(play.wander), jobs), "a meter changes nothing"
    assert metered.distil is not None
    assert metered.data_fingerprint("train") == inner.data_fingerprint("train")


@pytest.mark.parametrize("how", ["snapshot", "replay"])
def test_a_restore_is_no_reset_and_a_replay_is_one_with_its_steps(how: Reach) -> None:
    (job,) = play.jobs_of([TASK])
    (result,) = play.player(play.script({job.seed: play.plan(TASK)})).play([job])
    inner = Logged()
    metered = MeteredEnvironment(inner)
    reach(metered.open(), TASK, job.seed, result.turns, 3, how)
    expected = Counts(restores=1) if how == "snapshot" else Counts(env_resets=1, env_steps=3, replays=1)
    assert metered.counts == expected == logged(inner, expected.replays)
    replay(metered.open(), TASK, job.seed, result.turns)
    assert metered.counts - expected == Counts(env_resets=1, env_steps=len(result.turns), replays=1)


def test_an_expert_s_way_is_paid_for_too() -> None:
    inner = Logged()
    metered = MeteredEnvironment(inner)
    jobs = play.jobs_of([TASK], samples=2)
    begun = with_beginnings(metered, jobs, tail_turns=1, max_turns=play.MAX_TURNS).jobs
    way = len(play.plan(TASK))
    assert metered.counts == logged(inner) == Counts(env_resets=1, env_steps=way)
    for job in begun:
        assert job.start is not None
        job.start.open_at(metered.open())
    assert (
        metered.counts == logged(inner, 2) == Counts(env_resets=3, env_steps=way + 2 * (way - 1), replays=2)
    )


def test_a_call_that_fails_counts() -> None:
    metered = MeteredEnvironment(play.environment())
    with pytest.raises(EnvironmentFault):
        metered.open().load(TASK, b"nothing")
    assert metered.counts == Counts(restores=1)
