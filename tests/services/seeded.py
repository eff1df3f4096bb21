"""An engine in memory whose draws depend on the request alone, for pools and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import numpy as np

from pivotopd.errors import ArtifactError, EngineFault
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, Nats, Request, Sampling, ScoreRequest, TokenDistributions
from pivotopd.models.in_flight import InFlight

SAMPLING = Sampling(1.0, 4)
REQUESTS = [Request([task, 5, 6], seed) for task in range(4) for seed in range(5)]


class Seeded:
    """An engine whose draws depend on the request alone; it ends after some calls."""

    def __init__(self, policy: str = "a", calls: int = 1_000, loads: bool = True) -> None:
        self.policy, self.counts, self.calls, self.loads = policy, Counts(), calls, loads
        self.sizes: list[int] = []
        self.closed = False

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        if len(self.sizes) >= self.calls:
            raise EngineFault("ended")
        self.sizes.append(len(requests))
        self.counts += Counts(prompts=len(requests))
        draws = [np.random.default_rng([r.seed, *r.prompt_ids]).integers(0, 99, 3) for r in requests]
        return [Completion(d.astype(np.int32), -d.astype(np.float32), "stop") for d in draws]

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        return [np.full(len(r.response_ids), -len(r.prompt_ids), np.float32) for r in requests]

    def score_distributions(
        self, requests: Sequence[ScoreRequest], top_tokens: int | None
    ) -> list[tuple[Nats, TokenDistributions]]:
        width = 5 if top_tokens is None else top_tokens
        ids, top = np.arange(width, dtype=np.int32), -np.arange(width, dtype=np.float32) / 2
        return [
            (nats, TokenDistributions(np.tile(ids, (len(nats), 1)), np.tile(top, (len(nats), 1))))
            for nats in self.score(requests)
        ]

    def reload(self, folder: Path, policy: str) -> None:
        if not self.loads:
            raise ArtifactError("damaged")
        self.policy = policy

    def close(self) -> None:
        self.closed = True


class Hovering(Seeded):
    """The same engine with requests in flight, of which the one with the smallest seed ends first."""

    def __init__(self, policy: str = "a", landings: int = 1_000) -> None:
        super().__init__(policy)
        self.landings = landings
        self.most = 0
        self.given_up: list[list[int]] = []
        self.works, self.goes_on = Event(), Event()
        self.goes_on.set()

    def begin(self, sampling: Sampling) -> Hover:
        return Hover(self, sampling)


@dataclass
class Hover:
    """A flight of it; while ``goes_on`` is not set it works."""

    engine: Hovering
    sampling: Sampling
    flying: dict[int, Request] = field(default_factory=dict)

    def send(self, requests: Mapping[int, Request]) -> None:
        assert not requests.keys() & self.flying.keys(), "a key is sent twice"
        self.flying.update(requests)
        self.engine.most = max(self.engine.most, len(self.flying))

    def land(self) -> dict[int, Completion]:
        self.engine.works.set()
        assert self.engine.goes_on.wait(60)
        if self.engine.landings <= 0:
            raise EngineFault("ended")
        self.engine.landings -= 1
        if not self.flying:
            return {}
        first = min(self.flying, key=lambda key: (self.flying[key].seed, key))
        return {first: self.engine.generate([self.flying.pop(first)], self.sampling)[0]}

    def close(self) -> None:
        self.engine.given_up.append(sorted(self.flying))
        self.flying.clear()


def flown(flight: InFlight, requests: Sequence[Request], most: int = 1_000) -> list[bytes]:
    """Return the responses to all requests, of which at most so many are in flight at once."""
    waiting, found = dict(enumerate(requests)), dict[int, Completion]()
    while len(found) < len(requests):
        room = most - (len(requests) - len(waiting) - len(found))
        flight.send({key: waiting.pop(key) for key in list(waiting)[:room]})
        landed = flight.land()
        assert landed
        assert not landed.keys() & found.keys()
        found |= landed
    assert flight.land() == {}
    flight.close()
    return drawn([found[key] for key in range(len(requests))])


def drawn(completions: list[Completion]) -> list[bytes]:
    return [c.response_ids.tobytes() + c.logprobs_nats.tobytes() for c in completions]
