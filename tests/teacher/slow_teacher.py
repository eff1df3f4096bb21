"""A teacher that answers late: as a model behind a network does. For tests and measurements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pivotopd.ledger import Counts
from pivotopd.teacher.base import Query, Reading, Teacher, Transcript


@dataclass
class SlowTeacher:
    """Another teacher, each of whose calls takes some time more, however much is asked at once.

    Args:
        inner: The teacher.
        latency_s: Seconds that a call takes at least.
    """

    inner: Teacher
    latency_s: float

    def __post_init__(self) -> None:
        self.name = self.inner.name

    @property
    def spent(self) -> Counts:
        return self.inner.spent

    @property
    def counts(self) -> dict[str, int]:
        return self.inner.counts

    def read(self, transcripts: Sequence[Transcript], sample: int = 0) -> list[Reading]:
        time.sleep(self.latency_s)
        return self.inner.read(transcripts, sample)

    def analyse(self, transcripts: Sequence[Transcript]) -> list[Reading]:
        time.sleep(self.latency_s)
        return self.inner.analyse(transcripts)

    def next_actions(self, queries: Sequence[Query]) -> list[str | None]:
        time.sleep(self.latency_s)
        return self.inner.next_actions(queries)

    def distil(self, transcripts: Sequence[Transcript]) -> list[str | None]:
        time.sleep(self.latency_s)
        return self.inner.distil(transcripts)
