"""Percentile bootstrap over clusters: a figure with the interval that its sample leaves open.

The paper resamples trajectories or mistakes, not single replays (App. A, App. E.2): what belongs together is
averaged first, and each cluster counts the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pivotopd.seeds import rng_of

_CHUNK = 256
"""Draws at once, so that memory does not grow with the number of draws."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its bootstrap interval.

    Attributes:
        mean: The figure of the sample itself.
        low: Lower end.
        high: Upper end.
    """

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float], *, draws: int, seed: int, level: float = 0.95) -> Interval:
    """Return the mean of values and its percentile bootstrap interval.

    Args:
        values: One value per cluster, such as the share of a mistake's replays that were won.
        draws: Bootstrap draws.
        seed: Seed of the draws.
        level: Coverage of the interval.

    Raises:
        ValueError: There is no value, or the level is no share.
    """
    if not len(values):
        raise ValueError("a mean of no values has no interval")
    if not 0.0 < level < 1.0:
        raise ValueError(f"{level} is not the level of an interval")
    sample = np.asarray(values, dtype=np.float64)
    rng = rng_of("bootstrap", seed)
    means = np.concatenate(
        [
            sample[rng.integers(len(sample), size=(min(_CHUNK, draws - done), len(sample)))].mean(axis=1)
            for done in range(0, draws, _CHUNK)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(sample.mean()), float(low), float(high))
