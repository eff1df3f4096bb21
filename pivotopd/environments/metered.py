"""An environment that counts what is done with it, whoever does it: a player, a recovery, a check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pivotopd.environments.base import Env, Environment, PlayedEpisode, StepResult, Task, TaskOracle
from pivotopd.ledger import Counts


class MeteredEnvironment:
    """Another environment with a meter on all its instances. Not shared between threads.

    Args:
        inner: The environment; another meter may count other work with it.
    """

    def __init__(self, inner: Environment) -> None:
        self._inner = self.inner = inner
        self.spec, self.invalid_penalty = inner.spec, inner.invalid_penalty
        self.wording, self.teacher_wording = inner.wording, inner.teacher_wording
        self.resets = self.steps = self.restores = self.replays = 0

    @property
    def counts(self) -> Counts:
        """What all instances did so far, failed attempts included."""
        return Counts(
            env_resets=self.resets, env_steps=self.steps, restores=self.restores, replays=self.replays
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split."""
        return self._inner.tasks(split)

    def open(self) -> Env:
        """Return a fresh instance whose work is counted here."""
        return MeteredEnv(self, self._inner.open())

    def instruction(self, task: Task) -> str:
        """Return the task as the student is told it."""
        return self._inner.instruction(task)

    def data_fingerprint(self, split: str) -> str:
        """Return a hash over a split's tasks."""
        return self._inner.data_fingerprint(split)

    def distil(self, episode: PlayedEpisode) -> str | None:
        """Return a short skill by fixed rules."""
        return self._inner.distil(episode)

    def oracle(self, task: Task) -> TaskOracle:
        """Return the oracle of a task; its searches are no steps of an instance."""
        return self._inner.oracle(task)


class MeteredEnv:
    """An instance of a :class:`MeteredEnvironment`."""

    def __init__(self, meter: MeteredEnvironment, inner: Env) -> None:
        self._meter, self._inner, self.spec = meter, inner, inner.spec

    def reset(self, task: Task, seed: int) -> StepResult:
        """Start a task."""
        self._meter.resets += 1
        return self._inner.reset(task, seed)

    def step(self, action: str) -> StepResult:
        """Apply an action."""
        self._meter.steps += 1
        return self._inner.step(action)

    def snapshot(self) -> Any:
        """Return the whole state as a value of this process."""
        return self._inner.snapshot()

    def restore(self, snapshot: Any) -> StepResult:
        """Continue from a snapshot."""
        self._meter.restores += 1
        return self._inner.restore(snapshot)

    def dump(self) -> bytes | None:
        """Return the state as bytes, or None."""
        return self._inner.dump()

    def load(self, task: Task, state: bytes) -> StepResult:
        """Continue a task from dumped bytes."""
        self._meter.restores += 1
        return self._inner.load(task, state)

    def state_hash(self) -> str:
        """Return a hash of everything that decides what follows."""
        return self._inner.state_hash()

    def close(self) -> None:
        """Free what the instance holds."""
        self._inner.close()

    def count_replay(self) -> None:
        """Say that a state is now reached by playing actions again."""
        self._meter.replays += 1


def count_replay(env: Env) -> None:
    """Count a replay of an instance, where it has a meter: reset and steps alone do not tell one."""
    if isinstance(env, MeteredEnv):
        env.count_replay()
