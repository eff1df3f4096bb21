"""An environment around another one, whose tasks, texts and oracles are the inner one's."""

from __future__ import annotations

from collections.abc import Sequence

from pivotopd.environments.base import Environment, PlayedEpisode, Task, TaskOracle


class WrappedEnvironment:
    """All of another environment but its instances, which a subclass opens.

    Args:
        inner: The environment.
    """

    def __init__(self, inner: Environment) -> None:
        self.inner = inner
        self.spec, self.invalid_penalty = inner.spec, inner.invalid_penalty
        self.wording, self.teacher_wording = inner.wording, inner.teacher_wording

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split."""
        return self.inner.tasks(split)

    def instruction(self, task: Task) -> str:
        """Return the task as the student is told it."""
        return self.inner.instruction(task)

    def data_fingerprint(self, split: str) -> str:
        """Return a hash over a split's tasks."""
        return self.inner.data_fingerprint(split)

    def distil(self, episode: PlayedEpisode) -> str | None:
        """Return a short skill by fixed rules."""
        return self.inner.distil(episode)

    def oracle(self, task: Task) -> TaskOracle:
        """Return the oracle of a task; its searches are no steps of an instance."""
        return self.inner.oracle(task)
