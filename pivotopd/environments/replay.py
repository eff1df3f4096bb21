"""Bring an environment to the state before a recorded turn: restore its snapshot, or replay and compare.

A replay that shows another observation raises :class:`ReplayDivergence`; the caller drops that recovery and
counts it, so a state that was never visited is never trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pivotopd.environments.ahead import Answer, begin_load, begin_reset, begin_step
from pivotopd.environments.base import Env, StepResult, Task
from pivotopd.environments.metered import count_replay
from pivotopd.errors import EnvironmentFault, ReplayDivergence
from pivotopd.records import Turn

Reach = Literal["snapshot", "replay"]


@dataclass(frozen=True, slots=True)
class Passed:
    """A state that an episode went through.

    Attributes:
        state: The state as bytes, for an oracle.
        hash: Hash of everything that decides what follows.
    """

    state: bytes
    hash: str


def reach(env: Env, task: Task, seed: int, turns: Sequence[Turn], turn: int, how: Reach) -> StepResult:
    """Bring ``env`` to the state before ``turn`` and return what the student sees there.

    Args:
        env: A free instance.
        task: The episode's task.
        seed: The episode's environment seed.
        turns: The episode's turns, by index.
        turn: Index of the turn to stand before; may be one past the last.
        how: ``snapshot`` restores the stored state and falls back to a replay where none was stored.

    Raises:
        ReplayDivergence: An observation, or the state after the last action, differs from the record.
    """
    return begin_reach(env, task, seed, turns, turn, how)()


def begin_reach(env: Env, task: Task, seed: int, turns: Sequence[Turn], turn: int, how: Reach) -> Answer:
    """Begin what :func:`reach` does; several instances in processes get there at the same time."""
    recorded = turns[turn] if turn < len(turns) else None
    stored = recorded.snapshot if recorded is not None and env.spec.fork == "value" else None
    restores = how == "snapshot" and stored is not None
    first = begin_load(env, task, stored) if restores and stored else begin_reset(env, task, seed)
    steps = [] if restores else [begin_step(env, turns[index].action) for index in range(turn)]

    def reached() -> StepResult:
        if not restores:
            count_replay(env)
        result = first()
        for index, step in enumerate(steps):
            _compare(result.observation, turns[index].observation, index)
            result = step()
        expected = recorded.observation if recorded else turns[turn - 1].next_observation
        if expected is not None:
            _compare(result.observation, expected, turn)
        if recorded is not None and env.state_hash() != recorded.state_hash:
            raise ReplayDivergence(f"the state before turn {turn} differs from the record", where=task.id)
        return result

    return reached


def replay(env: Env, task: Task, seed: int, turns: Sequence[Turn]) -> tuple[list[Passed], StepResult]:
    """Play an episode's recorded actions again, and compare every answer and state with the record.

    Args:
        env: A free instance.
        task: The episode's task.
        seed: The episode's environment seed.
        turns: The episode's turns, by index.

    Returns:
        The state before each turn and after the last one, and the last answer.

    Raises:
        ReplayDivergence: An observation or a state differs from the record.
        EnvironmentFault: The environment cannot give its state as bytes.
    """
    count_replay(env)
    result = env.reset(task, seed)
    passed: list[Passed] = []
    for index, turn in enumerate(turns):
        _compare(result.observation, turn.observation, index)
        now = _passed(env, task)
        if now.hash != turn.state_hash or (turn.snapshot is not None and now.state != turn.snapshot):
            raise ReplayDivergence(f"the state before turn {index} differs from the record", where=task.id)
        passed.append(now)
        result = env.step(turn.action)
        if turn.next_observation is not None:
            _compare(result.observation, turn.next_observation, index + 1)
    passed.append(_passed(env, task))
    return passed, result


def _passed(env: Env, task: Task) -> Passed:
    state = env.dump()
    if state is None:
        raise EnvironmentFault(
            "the oracle needs the environment's state, and this engine gives none",
            where=task.id,
            mend="use environment.engine=native",
        )
    return Passed(state, env.state_hash())


def _compare(seen: str, recorded: str, turn: int) -> None:
    if seen != recorded:
        raise ReplayDivergence(
            f"the observation of turn {turn} differs: recorded {recorded[:80]!r}, now {seen[:80]!r}",
            mend="the environment or its data changed since the rollout; rerun the rollout stage",
        )
