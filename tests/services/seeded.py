"""An engine in memory whose draws depend on the request alone, for pools and servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pivotopd.errors import ArtifactError, EngineFault
from pivotopd.ledger import Counts
from pivotopd.models.base import Completion, Nats, Request, Sampling, ScoreRequest, TokenDistributions

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


def drawn(completions: list[Completion]) -> list[bytes]:
    return [c.response_ids.tobytes() + c.logprobs_nats.tobytes() for c in completions]
