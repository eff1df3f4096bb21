"""Requests in flight: prompts go in while other responses are still being written, and come out as they end.

An engine that can do so is :class:`Continuous`. Every other one is given all that waits as one batch, and
nothing goes on before its longest response ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pivotopd.models.base import Completion, Generator, Request, Sampling


class InFlight(Protocol):
    """Responses that an engine is writing, by keys of who asked."""

    def send(self, requests: Mapping[int, Request]) -> None:
        """Add requests, under keys that nothing in flight has.

        Raises:
            ConfigError: The sampling settings or a prompt's length do not fit the model.
        """
        ...

    def land(self) -> dict[int, Completion]:
        """Wait until some responses are complete and return them, keys ascending.

        Empty only where nothing is in flight. A response does not depend on what flies beside it.

        Raises:
            NumericsError: A log-probability is not finite.
            EngineFault: The engine has ended.
        """
        ...

    def close(self) -> None:
        """Give up what is still in flight; the engine can be used again."""
        ...


@runtime_checkable
class Continuous(Protocol):
    """A generator whose batch takes new prompts at any time."""

    def begin(self, sampling: Sampling) -> InFlight:
        """Return an empty flight; until it is closed the engine is asked for nothing else."""
        ...


@dataclass
class Rounds:
    """In flight on an engine that knows whole batches only: all that was sent is one."""

    generator: Generator
    sampling: Sampling
    _waiting: dict[int, Request] = field(default_factory=dict)

    def send(self, requests: Mapping[int, Request]) -> None:
        """Add requests to the next batch."""
        self._waiting.update(requests)

    def land(self) -> dict[int, Completion]:
        """Return all that was sent."""
        keys = sorted(self._waiting)
        if not keys:
            return {}
        asked, self._waiting = [self._waiting[key] for key in keys], {}
        return dict(zip(keys, self.generator.generate(asked, self.sampling), strict=True))

    def close(self) -> None:
        """Forget what was not asked."""
        self._waiting.clear()


def begin(generator: Generator, sampling: Sampling) -> InFlight:
    """Return an empty flight of any generator."""
    return generator.begin(sampling) if isinstance(generator, Continuous) else Rounds(generator, sampling)
