"""Environments in worker processes: what is played is what is played here, whoever ends in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pivotopd.config import EnvironmentSection
from pivotopd.environments import registry, workers
from pivotopd.environments.alfworld.environment import AlfworldEnvironment
from pivotopd.environments.base import Env, StepResult, Task
from pivotopd.environments.metered import MeteredEnvironment
from pivotopd.environments.replay import begin_reach, reach
from pivotopd.environments.worker_process import Stand
from pivotopd.environments.worker_process import serve as workers_serve
from pivotopd.environments.workers import WorkerEnv, WorkerEnvironment
from pivotopd.errors import ClusterError, ConfigError, EnvironmentFault, GameError, ReplayDivergence
from pivotopd.rollout import Job, Played
from tests import play
from tests.conftest import ROOT

SECTION = EnvironmentSection(prompt="compact", generated=play.GAMES)
TASKS = play.environment().tasks("train")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerEnvironment]:
    """Two processes that play the games of the tests."""
    made = WorkerEnvironment(AlfworldEnvironment(SECTION), SECTION, 2)
    yield made
    made.close()


def kill(pool: WorkerEnvironment, which: int = 0) -> None:
    """Kill a worker, unless it is dead already, and wait until it is gone."""
    process = pool._workers[which].process
    process.kill()
    process.join(10)
    assert process.exitcode == -signal.SIGKILL


def trace(env: Env, task: Task, actions: list[str]) -> list[tuple[StepResult, bytes | None, str]]:
    found = [(env.reset(task, 0), env.dump(), env.state_hash())]
    for action in actions:
        found.append((env.step(action), env.dump(), env.state_hash()))
    return found


def test_every_answer_and_state_is_the_one_of_this_process(pool: WorkerEnvironment) -> None:
    for task in TASKS[:3]:
        actions = ["look", "no such action", *play.plan(task, {2}, 6)]
        here, there = play.environment().open(), pool.open()
        assert trace(there, task, actions) == trace(here, task, actions)
        assert there.snapshot() == here.snapshot()
        mark, state = there.snapshot(), play.dumped(there)
        before = there.step("look"), there.dump(), there.state_hash()
        there.restore(mark)
        assert (there.step("look"), there.dump(), there.state_hash()) == before
        assert there.load(task, state) == here.load(task, state)
        assert there.spec == here.spec
        there.close()


def test_what_this_process_knows_is_asked_here(pool: WorkerEnvironment) -> None:
    here, task = play.environment(), TASKS[0]
    assert pool.tasks("train") == here.tasks("train")
    assert pool.data_fingerprint("train") == here.data_fingerprint("train")
    assert pool.instruction(task) == here.instruction(task)
    env = pool.open()
    env.reset(task, 0)
    assert play.best(task, env, pool) == play.best(task, env)
    env.close()


@pytest.fixture(scope="module")
def alone() -> dict[str, Played]:
    return play.played(play.player(play.wander), play.jobs_of(TASKS, 3))


@pytest.mark.parametrize("batch", [64, 5])
def test_a_rollout_is_the_same_and_its_counts_are(
    pool: WorkerEnvironment, batch: int, alone: dict[str, Played]
) -> None:
    there, here = MeteredEnvironment(pool), MeteredEnvironment(play.environment())
    found = play.played(play.player(play.wander, env=there, batch=batch), play.jobs_of(TASKS, 3))
    assert found == alone
    play.played(play.player(play.wander, env=here, batch=batch), play.jobs_of(TASKS, 3))
    assert there.counts == here.counts
    assert all(not worker.members for worker in pool._workers), "every instance was given back"


def test_both_processes_play_and_a_task_stays_in_one(pool: WorkerEnvironment) -> None:
    pool._homes.clear()
    envs = [(task, pool.open()) for task in TASKS[:4] for _ in range(2)]
    for task, env in envs:
        env.reset(task, 0)
    homes = [
        {index for index, worker in enumerate(pool._workers) if env in worker.members.values()}
        for _, env in envs
    ]
    assert homes == [{0}, {0}, {1}, {1}] * 2
    for _, env in envs:
        env.close()


def test_one_task_alone_is_spread(pool: WorkerEnvironment) -> None:
    envs = [pool.open() for _ in range(8)]
    for env in envs:
        env.reset(TASKS[0], 0)
    sizes = sorted(len(worker.members) for worker in pool._workers)
    assert sum(sizes) == 8
    assert sizes[1] - sizes[0] <= workers.UNEVEN + 1
    for env in envs:
        env.close()


def test_errors_are_the_ones_of_this_process(pool: WorkerEnvironment) -> None:
    env = pool.open()
    with pytest.raises(EnvironmentFault, match="No episode has been started"):
        env.dump()
    with pytest.raises(EnvironmentFault, match="No episode has been started"):
        env.step("look")
    with pytest.raises(EnvironmentFault, match="No episode has been started"):
        env.snapshot()
    with pytest.raises(EnvironmentFault, match="not an ALFWorld game"):
        env.reset(replace(TASKS[0], payload="no game"), 0)
    with pytest.raises(GameError, match="problem"):
        env.reset(replace(TASKS[0], payload=replace(TASKS[0].payload, pddl_problem="(")), 0)
    with pytest.raises(EnvironmentFault, match="No episode has been started"):
        env.step("look")
    for action in (env.reset(TASKS[0], 0), *map(env.step, play.plan(TASKS[0]))):
        assert isinstance(action, StepResult)
    with pytest.raises(EnvironmentFault, match="episode is over"):
        env.step("look")
    env.reset(TASKS[1], 0)
    env.close()
    with pytest.raises(EnvironmentFault):
        env.dump()


def test_a_defect_keeps_its_traceback(pool: WorkerEnvironment) -> None:
    env = pool.open()
    env.reset(TASKS[0], 0)
    with pytest.raises(RuntimeError, match=r"Traceback(.|\n)*AttributeError"):
        env.step(3)  # type: ignore[arg-type]  # what no caller does
    assert env.step("look").observation
    env.close()


# ---------------------------------------------------------------------- states that are reached again


def test_states_are_reached_as_in_this_process(pool: WorkerEnvironment, alone: dict[str, Played]) -> None:
    task_of = play.by_id(TASKS)
    for how in ("snapshot", "replay"):
        there, here = MeteredEnvironment(pool), MeteredEnvironment(play.environment())
        for meter in (there, here):
            begun = []
            for one in list(alone.values())[:6]:
                env, task = meter.open(), task_of[one.episode.task]
                turn = len(one.turns) // 2
                begun.append((env, one, turn, begin_reach(env, task, 0, one.turns, turn, how)))
            for env, one, turn, reached in begun:
                assert reached().observation == one.turns[turn].observation
                assert env.state_hash() == one.turns[turn].state_hash
                env.close()
        assert there.counts == here.counts


def test_a_replay_that_differs_counts_only_what_was_compared(
    pool: WorkerEnvironment, alone: dict[str, Played]
) -> None:
    one = next(one for one in alone.values() if len(one.turns) > 6)
    task = play.by_id(TASKS)[one.episode.task]
    turns = [*one.turns[:3], replace(one.turns[3], observation="Something else."), *one.turns[4:]]
    counts = []
    for inner in (pool, play.environment()):
        meter = MeteredEnvironment(inner)
        env = meter.open()
        with pytest.raises(ReplayDivergence, match="observation of turn 3"):
            reach(env, task, 0, turns, 6, "replay")
        counts.append(meter.counts)
        env.close()
    assert counts[0] == counts[1]
    assert counts[0].env_steps == 3


# ---------------------------------------------------------------------- processes that end


def test_a_killed_worker_costs_nothing_but_time(pool: WorkerEnvironment, alone: dict[str, Played]) -> None:
    killed: list[int] = []

    def killing(text: str, seed: int) -> object:
        if len(killed) < 2 and seed % 11 == 0:
            killed.append(len(killed) % 2)
            kill(pool, killed[-1])
        return play.wander(text, seed)

    meter = MeteredEnvironment(pool)
    found = play.played(play.player(killing, env=meter), play.jobs_of(TASKS, 3))  # type: ignore[arg-type]  # an answer
    assert found == alone
    assert len(killed) == meter.counts.worker_restarts == 2


def test_instances_in_the_middle_are_played_again_even_from_a_snapshot(pool: WorkerEnvironment) -> None:
    here, there = play.environment().open(), pool.open()
    actions = play.plan(TASKS[0], {2}, 6)
    for env in (here, there):
        env.reset(TASKS[0], 0)
        env.step(actions[0])
        mark = env.snapshot()
        env.step("look")
        env.restore(mark)
        env.step(actions[1])
    assert isinstance(there, WorkerEnv)
    for index in (0, 1):
        kill(pool, index)
    assert [there.step(action) for action in actions[2:]] == [here.step(action) for action in actions[2:]]
    assert there.snapshot() == here.snapshot()
    there.close()


def test_an_environment_that_plays_otherwise_the_second_time_is_found_out(pool: WorkerEnvironment) -> None:
    env = pool.open()
    env.reset(TASKS[0], 0)
    env.step("look")
    assert isinstance(env, WorkerEnv)
    stand = env.history[-1].answer
    assert isinstance(stand, Stand)
    env.history[-1].answer = replace(stand, state_hash="0" * 16)
    for index in (0, 1):
        kill(pool, index)
    with pytest.raises(ReplayDivergence, match="lead elsewhere"):
        env.step("look")
    env.reset(TASKS[0], 0)
    assert env.step("look").observation, "a new episode begins anew"
    env.close()


class Deadly(AlfworldEnvironment):
    """A process that plays it ends where someone looks around."""

    def open(self) -> Env:
        env = super().open()
        step = env.step

        def stepping(action: str) -> StepResult:
            if action == "inventory":
                os._exit(7)
            return step(action)

        env.step = stepping  # type: ignore[method-assign]  # of this instance
        return env


def deadly_serve(section: EnvironmentSection, pipe: object) -> None:
    registry.open_here = Deadly  # in the worker alone
    workers_serve(section, pipe)  # type: ignore[arg-type]  # a connection


def dead_serve(section: EnvironmentSection, pipe: object) -> None:
    os._exit(3)


def test_an_episode_that_ends_its_process_is_given_up_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "serve", deadly_serve)
    pool = WorkerEnvironment(AlfworldEnvironment(SECTION), SECTION, 1)
    jobs = [Job(f"e{index}", TASKS[0], "g", index, index) for index in range(3)]
    plans = {0: ["look"] * 24, 1: ["look", "inventory"], 2: ["examine fridge 1"] * 24}
    try:
        meter = MeteredEnvironment(pool)
        found = play.played(play.player(play.script(plans), env=meter), jobs)
        assert [one.episode.termination for one in found.values()] == [
            "turn_limit", "environment_error", "turn_limit",
        ]  # fmt: skip
        assert "ended 2 times" in (found["e1"].episode.error or "")
        assert "exit code 7" in (found["e1"].episode.error or "")
        expected = play.played(play.player(play.script(plans)), [jobs[0], jobs[2]])
        assert {key: one for key, one in found.items() if key != "e1"} == expected
        assert meter.counts.worker_restarts == 2
    finally:
        pool.close()


def test_processes_that_never_start_end_the_stage_with_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "serve", dead_serve)
    pool = WorkerEnvironment(AlfworldEnvironment(SECTION), SECTION, 1)
    with pytest.raises(ClusterError, match=r"before it was ready.*exit code 3") as caught:
        pool.open().reset(TASKS[0], 0)
    assert caught.value.exit_code == 9
    assert "environment.workers" in str(caught.value)
    pool.close()


def test_ctrl_c_does_not_reach_a_worker_that_is_still_starting() -> None:
    pool = WorkerEnvironment(AlfworldEnvironment(SECTION), SECTION, 1)
    env = pool.open()
    (worker,) = pool.process_ids
    os.kill(worker, signal.SIGINT)
    env.reset(TASKS[0], 0)
    assert pool.process_ids == [worker], "it was not started again"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "it still reaches this side"
    pool.close()


def test_closing_ends_the_processes_and_a_new_instance_starts_others() -> None:
    pool = WorkerEnvironment(AlfworldEnvironment(SECTION), SECTION, 1)
    assert pool.process_ids == [], "nothing starts before it is needed"
    pool.open().reset(TASKS[0], 0)
    (first,) = pool.process_ids
    MeteredEnvironment(pool).close()
    assert not psutil.pid_exists(first)
    pool.open().reset(TASKS[0], 0)
    assert pool.process_ids != [first]
    pool.close()


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Not even one that is in the middle of something."""
    script = textwrap.dedent(
        """
        import sys, time
        from pivotopd.config import EnvironmentSection
        from pivotopd.environments.registry import open_environment

        if __name__ == "__main__":
            section = EnvironmentSection(workers=2, generated={"train": 2})
            pool = open_environment(section)
            for task in pool.tasks("train"):
                pool.open().reset(task, 0)
            print(*pool.process_ids, flush=True)
            time.sleep(60)
        """
    )
    file = tmp_path / "parent.py"
    file.write_text(script, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        busy = psutil.Process(pids[0])
        busy.suspend()  # it cannot look at its pipe now
        parent.kill()
    busy.resume()
    end = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)


# ---------------------------------------------------------------------- how many


@pytest.mark.parametrize(
    ("engine", "cpus", "asked", "count"),
    [
        ("native", 8, "auto", 0), ("stock", 8, "auto", 8), ("stock", 1, "auto", 1), ("stock", 96, "auto", 16),
        ("native", 8, 3, 3), ("stock", 8, 0, 0),
    ],
)  # fmt: skip
def test_workers_are_as_many_as_they_are_worth(
    engine: str, cpus: int, asked: object, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cpus), raising=False)
    section = EnvironmentSection.model_validate({"engine": engine, "workers": asked})
    assert registry.worker_count(section) == count


def test_the_setting_is_obeyed() -> None:
    assert isinstance(registry.open_environment(SECTION), AlfworldEnvironment)
    asked = SECTION.model_copy(update={"workers": 1})
    assert isinstance(registry.open_environment(asked), WorkerEnvironment)


@pytest.mark.reference
def test_the_stock_engine_plays_the_same_in_processes() -> None:
    from pivotopd.environments.alfworld.stock import packages

    try:
        packages()
    except ConfigError as error:
        pytest.skip(str(error))
    section = SECTION.model_copy(update={"engine": "stock"})
    here = AlfworldEnvironment(section)
    pool = registry.open_environment(section.model_copy(update={"workers": 2}))
    assert isinstance(pool, WorkerEnvironment)
    jobs = play.jobs_of(TASKS[:2], 2)
    try:
        there, alone = MeteredEnvironment(pool), MeteredEnvironment(here)
        found = play.played(play.player(play.wander, env=there, max_turns=5), jobs)
        assert found == play.played(play.player(play.wander, env=alone, max_turns=5), jobs)
        one = found[jobs[0].episode]
        env = there.open()
        assert reach(env, jobs[0].task, 0, one.turns, 3, "snapshot").observation == one.turns[3].observation
        assert there.counts.replays == 1
    finally:
        pool.close()
