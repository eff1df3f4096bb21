"""What a turn did to the shortest remaining number of turns, whatever the environment."""

from __future__ import annotations

from typing import Literal

Change = Literal["progress", "neutral", "regress", "dead"]


def classify_distances(before: int | None, after: int | None) -> Change:
    """Class a turn by the distances around it; None stands for unsolvable.

    A turn is pivotal iff its class is ``regress`` or ``dead`` (paper §3.1): the distance strictly grew or
    became infinite. A turn in a game that is lost already changes nothing.
    """
    if after is None:
        return "neutral" if before is None else "dead"
    if before is None or after < before:
        return "progress"
    return "neutral" if after == before else "regress"
