"""Intervals over seeds and over what was played, drawn anew together.

Every seed's run is measured on the same tasks and mistakes. So a draw takes seeds with replacement and, apart
from them, clusters (a task with all its episodes, a mistake with all its replays), and averages where the two
meet. With one seed this is the bootstrap over clusters, as in the paper (App. A, App. E.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pivotopd.diagnosis.bootstrap import LEVEL, Interval, bootstrap_mean
from pivotopd.seeds import rng_of

Floats: TypeAlias = NDArray[np.float64]

SUCCESS_DRAWS = 4_000
TURNS_DRAWS = 2_000
"""The paper's numbers of draws (App. A, App. E.2)."""
SEED = 0


def mean_over(values: Floats, *, draws: int = SUCCESS_DRAWS) -> Interval:
    """Return the mean over seeds and clusters.

    Args:
        values: [seeds, clusters], float64.
        draws: Bootstrap draws.
    """
    if len(values) == 1:
        only = bootstrap_mean(values[0].tolist(), draws=draws, seed=SEED)
        assert only is not None, "there is a cluster"  # noqa: S101
        return only
    rng = rng_of("bootstrap over seeds", SEED)
    drawn = _drawn_rows(rng, values, draws)
    columns = rng.integers(values.shape[1], size=drawn.shape)
    resampled = np.take_along_axis(drawn, columns, axis=1).mean(axis=1)
    return _interval(float(values.mean()), resampled, values.shape[1])


def mean_by_type(values: Floats, types: Sequence[str]) -> tuple[dict[str, Interval], Interval]:
    """Return the mean of each task type, and the unweighted mean of these.

    Clusters are drawn inside their type: how many tasks of a type a panel holds is no chance.

    Args:
        values: [seeds, clusters], float64.
        types: Type of each cluster.
    """
    rng = rng_of("bootstrap by type", SEED)
    drawn = _drawn_rows(rng, values, SUCCESS_DRAWS)
    labels = np.asarray(types)
    by_type: dict[str, Interval] = {}
    resampled: list[Floats] = []
    for name in sorted(set(types)):
        inside = np.flatnonzero(labels == name)
        columns = inside[rng.integers(len(inside), size=(SUCCESS_DRAWS, len(inside)))]
        resampled.append(np.take_along_axis(drawn, columns, axis=1).mean(axis=1))
        by_type[name] = _interval(float(values[:, inside].mean()), resampled[-1], len(inside))
    mean = float(np.mean([one.mean for one in by_type.values()]))
    return by_type, _interval(mean, np.mean(resampled, axis=0), len(labels))


def ratio_over(sums: Floats, counts: Floats, *, draws: int) -> Interval | None:
    """Return a ratio of sums over seeds and clusters, or None where there is nothing to divide by.

    Draws in which nothing is counted say nothing and are left out.

    Args:
        sums: [seeds, clusters], float64, such as turns of the recovered replays of each mistake.
        counts: [seeds, clusters], float64, such as the number of these replays.
        draws: Bootstrap draws.
    """
    if not counts.sum():
        return None
    rng = rng_of("bootstrap of a ratio", SEED)
    seeds = rng.integers(len(sums), size=(draws, len(sums)))
    columns = rng.integers(sums.shape[1], size=(draws, sums.shape[1]))
    above = np.take_along_axis(sums[seeds].sum(axis=1), columns, axis=1).sum(axis=1)
    below = np.take_along_axis(counts[seeds].sum(axis=1), columns, axis=1).sum(axis=1)
    kept = below > 0
    clusters = int((counts.sum(axis=0) > 0).sum())
    return _interval(float(sums.sum() / counts.sum()), above[kept] / below[kept], clusters)


def _drawn_rows(rng: np.random.Generator, values: Floats, draws: int) -> Floats:
    """Return [draws, clusters]: the mean of as many seeds as there are, drawn with replacement."""
    seeds = rng.integers(len(values), size=(draws, len(values)))
    weights = np.stack([(seeds == seed).mean(axis=1) for seed in range(len(values))], axis=1)
    return np.asarray(weights @ values, dtype=np.float64)


def _interval(mean: float, resampled: Floats, clusters: int) -> Interval:
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, float(low), float(high), clusters)
