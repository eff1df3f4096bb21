"""Requests in flight on several engines: each is waited for beside the others, and what any has ready lands.

Legend: B requests in flight, S engines that live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from pivotopd.errors import EngineFault
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.models.in_flight import InFlight, begin
from pivotopd.services.background import Background
from pivotopd.services.crew import Crew


@dataclass
class _Lane:
    """One engine's part: what waits for it and what it has.

    Attributes:
        flight: Its flight.
        waiting: Keys that it was not yet given.
        flying: Keys that it was given.
    """

    flight: InFlight
    waiting: list[int] = field(default_factory=list)
    flying: list[int] = field(default_factory=list)

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.flying)

    def go_on(self, asked: Mapping[int, Request]) -> dict[int, Completion]:
        """Send what is due and wait for a landing; runs beside the other lanes."""
        if asked:
            self.flight.send(asked)
        return self.flight.land()


@dataclass
class PoolFlight:
    """What is in flight on a pool's engines.

    An engine that has landed something is asked again only with the next :meth:`land`, so that what the
    caller sends in between joins its batch. A refused request is met there too.

    Args:
        crew: The engines.
        sampling: How tokens are drawn.
        in_flight: Most requests that an engine has at once.
        count: Called when engines may have computed something.
    """

    crew: Crew
    sampling: Sampling
    in_flight: int
    count: Callable[[], None]
    _asked: dict[int, Request] = field(default_factory=dict)
    _lanes: dict[str, _Lane] = field(default_factory=dict)
    _calls: Background[dict[int, Completion]] = field(default_factory=Background)

    def send(self, requests: Mapping[int, Request]) -> None:
        """Add requests, each to the engine that knows its prompt, none with more than ceil(B / S).

        Raises:
            EngineFault: No engine is left.
        """
        self._asked.update(requests)
        self._assign(list(requests))

    def land(self) -> dict[int, Completion]:
        """Wait until some responses are complete and return them, keys ascending.

        Raises:
            ConfigError: The sampling settings or a prompt do not fit the model.
            NumericsError: A log-probability is not finite.
            EngineFault: No engine is left.
        """
        landed: dict[int, Completion] = {}
        while self._asked and not landed:
            self._start()
            for name, found in self._calls.ended():
                if isinstance(found, EngineFault):
                    self._leave(name, found)
                elif isinstance(found, BaseException):
                    raise found
                else:
                    lane = self._lanes[name]
                    lane.flying = [key for key in lane.flying if key not in found]
                    landed |= found
            for key in landed:
                self._asked.pop(key, None)
        self.count()
        return dict(sorted(landed.items()))

    def close(self) -> None:
        """Let every engine drop what it has, those that are waited for at the moment too."""
        lanes, self._lanes = self._lanes, {}
        self._asked.clear()
        for name, lane in lanes.items():
            if name in self.crew.alive:
                lane.flight.close()
        self.count()

    def _assign(self, keys: list[int]) -> None:
        if not keys:
            return
        self.crew.need()
        for name, engine in self.crew.alive.items():
            if name not in self._lanes:
                self._lanes[name] = _Lane(begin(engine, self.sampling))
        loads = {name: lane.load for name, lane in self._lanes.items()}
        most = -(-(sum(loads.values()) + len(keys)) // len(loads))
        for key in keys:
            home = self.crew.home(self._asked[key].prompt_ids, loads, most)
            loads[home] += 1
            self._lanes[home].waiting.append(key)

    def _start(self) -> None:
        """Let each engine that is not waited for go on, where it has something to do."""
        for name, lane in self._lanes.items():
            if name in self._calls.running or not lane.load:
                continue
            room = self.in_flight - len(lane.flying)
            given, lane.waiting = lane.waiting[:room], lane.waiting[room:]
            lane.flying += given
            self._calls.start(name, partial(lane.go_on, {key: self._asked[key] for key in given}))

    def _leave(self, name: str, fault: EngineFault) -> None:
        """Give an engine up and its requests to the others: their seeds make the same responses."""
        lane = self._lanes.pop(name)
        self.crew.drop(name, fault)
        self._assign(lane.flying + lane.waiting)
