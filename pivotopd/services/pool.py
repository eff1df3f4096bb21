"""Several engines of one policy as one: work is spread, an engine that ends leaves its share to the others.

Seeds belong to requests, so a result does not depend on which engine computed it, nor on how often it was
tried. Prompts that begin alike go to the same engine, where a prefix cache knows them, unless that one has
more than its share already.

Legend: B requests of a call, S engines that live.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from pivotopd.errors import EngineFault, PivotError
from pivotopd.ledger import Counts
from pivotopd.models.base import (
    Completion,
    Nats,
    PolicyEngine,
    Request,
    Sampling,
    ScoreRequest,
    TokenDistributions,
)
from pivotopd.services.background import Background
from pivotopd.services.crew import Crew
from pivotopd.services.pool_flight import PoolFlight
from pivotopd.services.protocol import Role

logger = logging.getLogger(__name__)
Asked = TypeVar("Asked", Request, ScoreRequest)
Answer = TypeVar("Answer")


class EnginePool:
    """Spreads work over engines that hold the same policy.

    Args:
        engines: The engines by name, such as their addresses.
        in_flight: Most requests that an engine is given at once.
        role: What they are, for errors.

    Raises:
        EngineFault: There is no engine, or they hold different policies.
    """

    def __init__(self, engines: dict[str, PolicyEngine], in_flight: int, role: Role = "policy") -> None:
        policies = {name: engine.policy for name, engine in engines.items()}
        if len(set(policies.values())) != 1:
            held = ", ".join(f"{name}: {policy}" for name, policy in policies.items())
            raise EngineFault(
                "the engines of a pool do not hold one policy", where=held or "no engine", mend="reload them"
            )
        self.policy = next(iter(policies.values()))
        self._all, self._crew = dict(engines), Crew(engines, role)
        self._in_flight, self._role = in_flight, role
        self.counts = Counts()
        self._count()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return one completion a request, in order; EngineFault when no engine is left."""
        return self._spread(requests, lambda engine, part: engine.generate(part, sampling))

    def begin(self, sampling: Sampling) -> PoolFlight:
        """Return an empty flight; until it is closed the engines are asked for nothing else."""
        return PoolFlight(self._crew, sampling, self._in_flight, self._count)

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        """Return the (R,) log-probabilities of each request's response tokens, in order."""
        return self._spread(requests, lambda engine, part: engine.score(part))

    def score_distributions(
        self, requests: Sequence[ScoreRequest], top_tokens: int | None
    ) -> list[tuple[Nats, TokenDistributions]]:
        """Return the same, and each token's likeliest ids."""
        return self._spread(requests, lambda engine, part: engine.score_distributions(part, top_tokens))

    def reload(self, folder: Path, policy: str) -> None:
        """Give every engine the weights; one that fails is dropped with a warning.

        Raises:
            PivotError: None could load them; the error is the last one's.
        """
        for name, engine in list(self._crew.alive.items()):
            try:
                engine.reload(folder, policy)
            except PivotError as error:
                self._crew.drop(name, error)
                if not self._crew.alive:
                    raise
        self.policy = policy
        self._crew.forget()

    def close(self) -> None:
        """End every engine, those that were given up too."""
        self._crew.alive.clear()
        for name, engine in self._all.items():
            try:
                engine.close()
            except EngineFault as fault:
                logger.warning("%s engine %s had ended already: %s", self._role, name, fault.what)

    def _spread(
        self, requests: Sequence[Asked], ask: Callable[[PolicyEngine, list[Asked]], list[Answer]]
    ) -> list[Answer]:
        """Return the answers in order, asking again elsewhere what an ended engine left."""
        answers: dict[int, Answer] = {}
        while len(answers) < len(requests):
            self._crew.need()
            shares = self._shares(requests, [i for i in range(len(requests)) if i not in answers])
            calls: Background[EngineFault | None] = Background()
            for name, share in shares.items():
                calls.start(name, partial(self._work, name, share, requests, ask, answers))
            while calls.running:
                for name, fault in calls.ended():
                    if isinstance(fault, EngineFault):
                        self._crew.drop(name, fault)
                    elif fault is not None:
                        raise fault
        self._count()
        return [answers[i] for i in range(len(requests))]

    def _work(
        self,
        name: str,
        share: list[int],
        requests: Sequence[Asked],
        ask: Callable[[PolicyEngine, list[Asked]], list[Answer]],
        answers: dict[int, Answer],
    ) -> EngineFault | None:
        """Put one engine's answers beside the others'; return the fault that ended it."""
        for start in range(0, len(share), self._in_flight):
            part = share[start : start + self._in_flight]
            try:
                found = ask(self._all[name], [requests[i] for i in part])
            except EngineFault as fault:
                return fault
            answers.update(zip(part, found, strict=True))
        return None

    def _shares(self, requests: Sequence[Asked], wanted: list[int]) -> dict[str, list[int]]:
        """Return which engine computes which requests: none more than ceil(B / S)."""
        shares: dict[str, list[int]] = {name: [] for name in self._crew.alive}
        loads = dict.fromkeys(shares, 0)
        most = -(-len(wanted) // len(shares))
        for i in wanted:
            home = self._crew.home(requests[i].prompt_ids, loads, most)
            shares[home].append(i)
            loads[home] += 1
        return {name: share for name, share in shares.items() if share}

    def _count(self) -> None:
        self.counts = sum((engine.counts for engine in self._all.values()), Counts())
