"""An environment that counts what is done with it, whoever does it: a player, a recovery, a check."""

from __future__ import annotations

from typing import Any

from pivotopd.environments import ahead
from pivotopd.environments.base import Env, Environment, StepResult, Task
from pivotopd.environments.workers import WorkerEnv, WorkerEnvironment
from pivotopd.environments.wrapped import WrappedEnvironment
from pivotopd.ledger import Counts


class MeteredEnvironment(WrappedEnvironment):
    """Another environment with a meter on all its instances. Not shared between threads.

    Args:
        inner: The environment; another meter may count other work with it.
    """

    def __init__(self, inner: Environment) -> None:
        super().__init__(inner)
        self.resets = self.steps = self.restores = self.replays = self.worker_restarts = 0

    @property
    def counts(self) -> Counts:
        """What all instances did so far, failed attempts included."""
        return Counts(
            env_resets=self.resets,
            env_steps=self.steps,
            restores=self.restores,
            replays=self.replays,
            worker_restarts=self.worker_restarts,
        )

    def open(self) -> Env:
        """Return a fresh instance whose work is counted here."""
        return MeteredEnv(self, self.inner.open())

    def close(self) -> None:
        """End the processes that play it, where there are any."""
        if isinstance(self.inner, WorkerEnvironment):
            self.inner.close()


class MeteredEnv:
    """An instance of a :class:`MeteredEnvironment`. Calls are counted when they are waited for."""

    def __init__(self, meter: MeteredEnvironment, inner: Env) -> None:
        self._meter, self._inner, self.spec = meter, inner, inner.spec
        self._restarts = 0

    def reset(self, task: Task, seed: int) -> StepResult:
        """Start a task."""
        return self.begin_reset(task, seed)()

    def step(self, action: str) -> StepResult:
        """Apply an action."""
        return self.begin_step(action)()

    def begin_reset(self, task: Task, seed: int) -> ahead.Answer:
        """Begin to start a task."""
        return self._counted("resets", ahead.begin_reset(self._inner, task, seed))

    def begin_step(self, action: str) -> ahead.Answer:
        """Begin to apply an action."""
        return self._counted("steps", ahead.begin_step(self._inner, action))

    def begin_load(self, task: Task, state: bytes) -> ahead.Answer:
        """Begin to continue a task from dumped bytes."""
        return self._counted("restores", ahead.begin_load(self._inner, task, state))

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
        return self.begin_load(task, state)()

    def state_hash(self) -> str:
        """Return a hash of everything that decides what follows."""
        return self._inner.state_hash()

    def close(self) -> None:
        """Free what the instance holds."""
        self._inner.close()

    def _counted(self, name: str, answer: ahead.Answer) -> ahead.Answer:
        def answered() -> StepResult:
            setattr(self._meter, name, getattr(self._meter, name) + 1)
            try:
                return answer()
            finally:
                self._count_restarts()

        return answered

    def _count_restarts(self) -> None:
        if isinstance(self._inner, WorkerEnv):
            self._meter.worker_restarts += self._inner.restarts - self._restarts
            self._restarts = self._inner.restarts

    def count_replay(self) -> None:
        """Say that a state is now reached by playing actions again."""
        self._meter.replays += 1


def count_replay(env: Env) -> None:
    """Count a replay of an instance, where it has a meter: reset and steps alone do not tell one."""
    if isinstance(env, MeteredEnv):
        env.count_replay()
