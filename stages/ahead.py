"""Scores of an update, computed while an earlier stage of the same process waits for the teacher.

The reference's scores of the rollout need no label, the policy's need labels but no recovery. What is
computed here is kept in memory by the digest of the policy and the tokens of the call that the update will
make, so it can be taken for nothing else, and the update computes what is not there. Its ledger counts it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from pivotopd.ledger import Counts
from pivotopd.methods.registry import make_method
from pivotopd.models.base import Nats, Scorer, ScoreRequest, TokenDistributions
from pivotopd.records import Episode, Turn
from pivotopd.scoring import Signaller
from pivotopd.stops import stop_behind
from stages.depth import depth_before
from stages.update_scores import read_beside, signaller_of, trains
from stages.work import Job, Source, Stopwatch, Work

PHASE = "ahead"
"""Name of the seconds that a stage spent on the update's scores."""
_NAME = "scores ahead"

Scores = TypeVar("Scores")


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a call returned, and what it used."""

    scores: Any
    used: Counts


class Ahead:
    """The scores of one update that are there before it begins.

    Args:
        work: The process's share of the run; it keeps them until the update takes them.
        update: The update.
    """

    def __init__(self, work: Work, update: Job) -> None:
        self.update = update
        self._work = work
        self._kept: dict[bytes, _Kept] = {}
        self._scorers: dict[str, _Remembering] = {}
        self._taking = False
        self._steps: Iterator[object] = iter(())
        work.hold(_NAME, self)

    def close(self) -> None:
        """Forget all."""
        self._kept.clear()

    def played(self, episodes: Sequence[Episode], rows: Sequence[Turn]) -> None:
        """Go on with what needs no label.

        Args:
            episodes: All episodes of the iteration.
            rows: Their turns, in the order of the rollout's artifact.
        """
        self._steps = self._unlabelled({one.episode: one for one in episodes}, rows)

    def labelled(self, episodes: Sequence[Episode], rows: Sequence[Turn]) -> None:
        """Go on with what needs no recovery; the labels are published.

        Args:
            episodes: All episodes of the iteration.
            rows: Their turns, in the order of the rollout's artifact.
        """
        self._steps = self._labelled({one.episode: one for one in episodes}, rows)

    def wait(self, asked: Sequence[Future[Any]], watch: Stopwatch) -> None:
        """Wait until all are answered, and score meanwhile.

        Args:
            asked: What is waited for.
            watch: Keeps the seconds of scoring apart from those of waiting.
        """
        while not all(one.done() for one in asked):
            with watch.aside(PHASE):
                if not self._step():
                    break
        wait(asked)

    def take(self) -> None:
        """From here on a score is handed out once, and what it took is counted where it is asked for."""
        self._taking = True

    def scorer(self, source: Source) -> Scorer:
        """Return what scores with a policy and remembers it; the same object for the same policy."""
        if source.digest not in self._scorers:
            self._scorers[source.digest] = _Remembering(self, source)
        return self._scorers[source.digest]

    def asked(
        self,
        source: Source,
        kind: str,
        requests: Sequence[ScoreRequest],
        compute: Callable[[Scorer], Scores],
    ) -> Scores:
        """Return what a call returns, computing it unless it is there.

        Args:
            source: The policy that scores.
            kind: What is asked, besides the requests.
            requests: The call's requests.
            compute: Makes the call.
        """
        key = _key(source, kind, requests)
        if self._taking:
            kept = self._kept.pop(key, None)
            if kept is None:
                return compute(self._work.scorer(source))
            self._work.count(kept.used)
        else:
            kept = self._kept.get(key)
            if kept is None:
                kept = self._kept[key] = self._apart(source, compute)
        return cast("Scores", kept.scores)

    def _apart(self, source: Source, compute: Callable[[Scorer], Scores]) -> _Kept:
        """Make a call that the ledger of the stage that waits does not have."""
        before, used = self._work.spent, Counts()
        try:
            scores = compute(self._work.scorer(source))
        finally:
            used = self._work.spent - before
            self._work.count(Counts() - used)
        return _Kept(scores, used)

    def _step(self) -> bool:
        """Score one part more; tell whether there was one."""
        try:
            next(self._steps)
        except StopIteration:
            return False
        except Exception as error:
            if stop_behind(error) is not None:
                raise
            self._steps = iter(())  # the update does it again, whose error it is
            return False
        return True

    def _unlabelled(self, episodes: dict[str, Episode], rows: Sequence[Turn]) -> Iterator[None]:
        yield from self._signaller.unlabelled(trains(rows, episodes))

    def _labelled(self, episodes: dict[str, Episode], rows: Sequence[Turn]) -> Iterator[object]:
        beside = read_beside(self._work, self.update, episodes)
        yield from self._signaller.parts(
            trains(rows, episodes), beside.labels, beside.lessons, beside.winners, beside.skills
        )

    @property
    def _signaller(self) -> Signaller:
        config = self._work.config
        method = make_method(config.method, config.recovery.depth).at_depth(
            depth_before(self._work, self.update)
        )
        return signaller_of(self._work, self.update, method.needs, self.scorer)


@dataclass(frozen=True, slots=True)
class _Remembering:
    """A scorer whose calls are remembered.

    Args:
        ahead: Remembers them.
        source: The policy.
    """

    ahead: Ahead
    source: Source

    def score(self, requests: Sequence[ScoreRequest]) -> list[Nats]:
        """Return what the policy's scorer does."""
        return self.ahead.asked(self.source, "score", requests, lambda scorer: scorer.score(requests))

    def score_distributions(
        self, requests: Sequence[ScoreRequest], top_tokens: int | None
    ) -> list[tuple[Nats, TokenDistributions]]:
        """Return what the policy's scorer does."""
        return self.ahead.asked(
            self.source,
            f"distributions {top_tokens}",
            requests,
            lambda scorer: scorer.score_distributions(requests, top_tokens),
        )


def scorers_of(work: Work, update: Job) -> Callable[[Source], Scorer]:
    """Return what gives an update its scorers, with what was scored ahead for it in this process."""
    ahead = work.held(_NAME)
    work.release(_NAME)
    if not isinstance(ahead, Ahead) or ahead.update != update:
        return work.scorer
    ahead.take()
    return ahead.scorer


def _key(source: Source, kind: str, requests: Sequence[ScoreRequest]) -> bytes:
    """Return what decides a call's scores: the policy and the tokens, each with its length before it."""
    digest = hashlib.sha256(f"{source.digest} {kind} {len(requests)}".encode())
    for request in requests:
        for ids in (request.prompt_ids, request.response_ids):
            digest.update(len(ids).to_bytes(8, "big"))
            digest.update(np.asarray(ids, dtype=np.int64).tobytes())
    return digest.digest()
