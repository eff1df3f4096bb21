"""Recoveries beside a rollout: their prompts fly where the rollout leaves room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from pivotopd.errors import PivotError
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, Generator, Request, Sampling, generation_counts
from pivotopd.models.in_flight import InFlight, begin
from pivotopd.recovery import Asks, Recovered, Recovering, Writes
from pivotopd.teacher.base import Query
from pivotopd.teacher.courier import Courier

Asked = Future[Sequence[str | None]]
"""Actions that the teacher was asked for."""


@dataclass(slots=True)
class _Part:
    """A part of the recoveries, and what it waits for."""

    steps: Recovering
    asked: Asked | None = None
    writes: Writes | None = None
    flies: bool = False
    result: Recovered | None = None

    @property
    def done(self) -> bool:
        return self.result is not None

    @property
    def requests(self) -> Sequence[Request]:
        return self.writes.requests if self.writes else ()

    @property
    def chains(self) -> Sequence[tuple[str, int]]:
        return self.writes.chains if self.writes else ()


@dataclass
class Recoveries:
    """The recoveries under way.

    Args:
        courier: Asks their teacher.

    Attributes:
        used: What the engine did for them.
        failed: The error that ended them; it is raised where they are finished.
    """

    courier: Courier[Query, str | None]
    used: Counts = field(default_factory=Counts)
    failed: PivotError | None = None
    _parts: list[_Part] = field(default_factory=list)

    def start(self, steps: Recovering) -> None:
        """Begin a part."""
        part = _Part(steps)
        self._parts.append(part)
        self._send(part, None)

    def pump(self) -> None:
        """Let each part go on whose teacher has answered."""
        for part in self._parts:
            while self.failed is None and part.asked is not None and part.asked.done():
                asked, part.asked = part.asked, None
                try:
                    answer = asked.result()
                except PivotError as error:
                    self.failed = error
                else:
                    self._send(part, answer)

    def take(self, room: int | None) -> list[_Part]:
        """Return parts that wait for the engine and fit; None takes all."""
        self.pump()
        taken: list[_Part] = []
        for part in self._parts if self.failed is None else ():
            size = len(part.requests)
            if size and not part.flies and (room is None or size <= room):
                taken.append(part)
                room = None if room is None else room - size
        return taken

    def give(self, taken: Sequence[_Part], completions: Sequence[Completion]) -> None:
        """Hand out the completions of the parts' requests, in order."""
        start = 0
        for part in taken:
            requests, part.writes, part.flies = part.requests, None, False
            found = completions[start : start + len(requests)]
            start += len(requests)
            self.used += replace(generation_counts(requests, found), rounds=0)  # the batch is the rollout's
            self._send(part, found)

    def finish(
        self, engine: Generator, sampling: Sampling, waiting: Callable[[Sequence[Asked]], object] = wait
    ) -> list[Recovered]:
        """Do what is left, all parts' prompts of one depth at once, and return the results.

        Args:
            engine: Writes.
            sampling: How it draws.
            waiting: Returns when the teacher has answered all of some questions.

        Raises:
            PivotError: The teacher, the engine or a recovery failed, now or earlier.
        """
        while not all(part.done for part in self._parts):
            while asked := [part.asked for part in self._parts if part.asked is not None]:
                self.courier.hurry()
                waiting(asked)
                self.pump()
                if self.failed is not None:
                    break
            taken = self.take(None)
            if self.failed is not None:
                raise self.failed
            self.give(taken, _in_order(taken, engine, sampling))
        return [part.result for part in self._parts if part.result is not None]

    def _send(self, part: _Part, answer: Any) -> None:
        try:
            asked = part.steps.send(answer)
        except StopIteration as stop:
            part.result = stop.value
            return
        except PivotError as error:
            self.failed = error
            return
        if isinstance(asked, Asks):
            part.asked = self.courier.ask(asked.queries)
        else:
            part.writes = asked


def _in_order(taken: Sequence[_Part], engine: Generator, sampling: Sampling) -> list[Completion]:
    """Generate as if the parts were one, in the order of their chains: it decides the shapes of batches."""
    requests = [one for part in taken for one in part.requests]
    chains = [one for part in taken for one in part.chains]
    order = sorted(range(len(requests)), key=lambda index: chains[index])
    completions = engine.generate([requests[index] for index in order], sampling)
    found = dict(zip(order, completions, strict=True))
    return [found[index] for index in range(len(requests))]


@dataclass
class Joint:
    """An engine for a rollout whose batches recoveries may join.

    Args:
        engine: The engine.
        room: Most prompts that are in flight at once.
        recoveries: What may join; None while nothing does.
    """

    engine: Generator
    room: int
    recoveries: Recoveries | None = None

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return the completions of a batch, which nothing joins."""
        return self.engine.generate(requests, sampling)

    def begin(self, sampling: Sampling) -> InFlight:
        """Return an empty flight of the rollout's, which recoveries join where there is room."""
        flight = begin(self.engine, sampling)
        return flight if self.recoveries is None else Joined(flight, self.room, self.recoveries)


@dataclass
class Joined:
    """A rollout's flight with recoveries in it: their keys are below 0."""

    flight: InFlight
    room: int
    recoveries: Recoveries
    _own: set[int] = field(default_factory=set)
    _parts: list[_Part] = field(default_factory=list)
    _answers: list[dict[int, Completion | None]] = field(default_factory=list)
    _last: int = 0

    def send(self, requests: Mapping[int, Request]) -> None:
        """Add the rollout's requests."""
        self._own |= requests.keys()
        self.flight.send(requests)

    def land(self) -> dict[int, Completion]:
        """Return the rollout's responses that are complete; those of recoveries go to them."""
        while self._own:
            self._join()
            landed = self.flight.land()
            self._hand_over(landed)
            if own := {key: one for key, one in landed.items() if key in self._own}:
                self._own -= own.keys()
                return own
        return {}

    def close(self) -> None:
        """Give up what is in flight; recoveries that joined are asked again where they are finished."""
        self.flight.close()
        for part in self._parts:
            part.flies = False

    def _join(self) -> None:
        flying = len(self._own) + sum(len(part.requests) for part in self._parts)
        for part in self.recoveries.take(max(0, self.room - flying)):
            keys = [self._last - 1 - index for index in range(len(part.requests))]
            self._last, part.flies = keys[-1], True
            self._parts.append(part)
            self._answers.append(dict.fromkeys(keys))
            self.flight.send(dict(zip(keys, part.requests, strict=True)))

    def _hand_over(self, landed: Mapping[int, Completion]) -> None:
        for part, answers in list(zip(self._parts, self._answers, strict=True)):
            answers |= {key: landed[key] for key in answers if key in landed}
            complete = [one for one in answers.values() if one is not None]
            if len(complete) == len(answers):
                self._parts.remove(part)
                self._answers.remove(answers)
                self.recoveries.give([part], complete)
