"""Percentile bootstrap over episodes: the unit that is drawn again is an episode, never a repeat of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pivotopd.seeds import rng_of

LEVEL: Final = 0.95
_CHUNK: Final = 4_000_000
"""Most indices drawn at once, so that many episodes need no more memory than few."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over episodes with its 95 % interval.

    Attributes:
        mean: The mean.
        low: Lower end.
        high: Upper end.
        episodes: Number of episodes.
    """

    mean: float
    low: float
    high: float
    episodes: int


def bootstrap_mean(values: Sequence[float], *, draws: int, seed: int) -> Interval | None:
    """Return the mean of one value an episode with its percentile interval, or None without episodes.

    Args:
        values: One value an episode, in an order that does not depend on how they were played.
        draws: Number of resamples (the paper: 4,000; 2,000 for recovery).
        seed: Seed of the resamples.
    """
    return bootstrap_ratio(values, [1.0] * len(values), draws=draws, seed=seed)


def bootstrap_ratio(
    numerators: Sequence[float], denominators: Sequence[float], *, draws: int, seed: int
) -> Interval | None:
    """Return sum / sum over episodes with its percentile interval.

    A resample whose denominators are all zero says nothing and is left out.

    Args:
        numerators: One value an episode, such as its turns in won replays.
        denominators: One value an episode, such as its number of won replays.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The interval, or None where the denominators sum to zero; ``episodes`` counts those above zero.
    """
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if not below.size or not below.sum():
        return None
    rng = rng_of("bootstrap", seed)
    ratios = []
    rows = max(1, _CHUNK // below.size)
    for start in range(0, draws, rows):
        drawn = rng.integers(0, below.size, size=(min(rows, draws - start), below.size))
        tops, bottoms = above[drawn].sum(axis=1), below[drawn].sum(axis=1)
        ratios.append(tops[bottoms > 0] / bottoms[bottoms > 0])
    tail = 50.0 * (1.0 - LEVEL)
    low, high = np.percentile(np.concatenate(ratios), [tail, 100.0 - tail])
    return Interval(float(above.sum() / below.sum()), float(low), float(high), int((below > 0).sum()))
