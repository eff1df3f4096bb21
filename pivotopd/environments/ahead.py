"""Calls that begin now and are waited for later: instances in other processes work meanwhile.

An instance of this process has nothing to gain: its call is done when it is waited for, so calls that are
waited for in the order in which they began do the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from pivotopd.environments.base import Env, StepResult, Task

Answer = Callable[[], StepResult]
"""Waits for a call; raises what the call raised. To be called once, in the order of an instance's calls."""


@runtime_checkable
class Ahead(Protocol):
    """An instance whose calls can be begun."""

    def begin_reset(self, task: Task, seed: int) -> Answer:
        """Begin what ``reset`` does."""
        ...

    def begin_load(self, task: Task, state: bytes) -> Answer:
        """Begin what ``load`` does."""
        ...

    def begin_step(self, action: str) -> Answer:
        """Begin what ``step`` does after all that was begun before."""
        ...


def begin_reset(env: Env, task: Task, seed: int) -> Answer:
    """Begin an episode."""
    return env.begin_reset(task, seed) if isinstance(env, Ahead) else partial(env.reset, task, seed)


def begin_load(env: Env, task: Task, state: bytes) -> Answer:
    """Begin to continue a task from dumped bytes."""
    return env.begin_load(task, state) if isinstance(env, Ahead) else partial(env.load, task, state)


def begin_step(env: Env, action: str) -> Answer:
    """Begin a step."""
    return env.begin_step(action) if isinstance(env, Ahead) else partial(env.step, action)
