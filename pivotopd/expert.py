"""Episodes that an expert begins and the student ends: the beginnings are the oracle's shortest ways.

The expert's turns are no responses: they have no tokens, become no rows, and nothing trains on them. The
student sees them as history, and its first row has the number of its turn in the whole episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pivotopd.environments.base import Env, Environment, PlayedTurn, StepResult, Task
from pivotopd.environments.metered import count_replay
from pivotopd.errors import ConfigError, ReplayDivergence, SearchLimit
from pivotopd.rollout import Job, Start


@dataclass(frozen=True, slots=True)
class Begun:
    """Jobs with their beginnings.

    Attributes:
        jobs: The jobs, in order.
        counts: ``expert_turns`` over all jobs, and ``expert_unsolved``: jobs that the student plays from
            their start, since the oracle gave the task up.
    """

    jobs: list[Job]
    counts: Mapping[str, int]


def with_beginnings(
    environment: Environment, jobs: Sequence[Job], *, tail_turns: int, max_turns: int
) -> Begun:
    """Let an expert play each job up to its last turns.

    Args:
        environment: Gives the oracles, which may use hidden objects: a demonstration shows the shortest way.
        jobs: Jobs without a start.
        tail_turns: Turns of the expert's way that are left to the student, which may take longer.
        max_turns: Turn limit of an episode, the expert's turns included.

    Raises:
        ConfigError: The environment has no state that an oracle can read.
        EnvironmentFault: The environment has no oracle, or a game cannot be used.
    """
    ways: dict[str, tuple[PlayedTurn, ...] | None] = {}
    begun: list[Job] = []
    for job in jobs:
        if job.task.id not in ways:
            ways[job.task.id] = _way(environment, job.task, job.seed, max_turns)
        past = (ways[job.task.id] or ())[:-tail_turns]
        begun.append(replace(job, start=Start(past, _opener(job, past))) if past else job)
    counts = {
        "expert_turns": sum(len(job.start.turns) for job in begun if job.start is not None),
        "expert_unsolved": sum(ways[job.task.id] is None for job in jobs),
    }
    return Begun(begun, counts)


def _way(environment: Environment, task: Task, seed: int, max_turns: int) -> tuple[PlayedTurn, ...] | None:
    """Return the turns of a shortest way, at most ``max_turns``; None where the search was given up."""
    oracle, env = environment.oracle(task), environment.open()
    try:
        seen, turns = env.reset(task, seed), list[PlayedTurn]()
        while not seen.done and len(turns) < max_turns:
            state = env.dump()
            if state is None:
                raise ConfigError(
                    "an expert needs the environment's state, and this environment stores none",
                    where="method.direction",
                    mend="set method.direction=f2b",
                )
            best = oracle.best_actions(state, None)
            if not best:
                return None
            turns.append(PlayedTurn(seen.observation, best[0], committed=True))
            seen = env.step(best[0])
        return tuple(turns)
    except SearchLimit:
        return None
    finally:
        env.close()


def _opener(job: Job, past: Sequence[PlayedTurn]) -> Callable[[Env], StepResult]:
    """Return what plays an expert's turns in a fresh instance, checked against what the expert saw."""

    def open_at(env: Env) -> StepResult:
        count_replay(env)
        seen = env.reset(job.task, job.seed)
        for index, turn in enumerate(past):
            if seen.observation != turn.observation:
                raise ReplayDivergence(f"turn {index} of the expert's way looks otherwise", where=job.task.id)
            seen = env.step(turn.action)
        return seen

    return open_at
