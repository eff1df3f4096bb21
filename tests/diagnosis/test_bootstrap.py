"""Intervals: worked out by hand, equal to a plain NumPy bootstrap, and over episodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.diagnosis.bootstrap import Interval, bootstrap_mean, bootstrap_ratio
from pivotopd.seeds import rng_of


def test_two_episodes_by_hand() -> None:
    # Resamples of (0, 1): both 0 or both 1 in a quarter of the draws each, one of each in the rest.
    assert bootstrap_mean([0.0, 1.0], draws=4000, seed=0) == Interval(0.5, 0.0, 1.0, 2)
    assert bootstrap_mean([0.25, 0.25, 0.25], draws=10, seed=0) == Interval(0.25, 0.25, 0.25, 3)
    assert bootstrap_mean([], draws=10, seed=0) is None


def test_ten_episodes_by_hand() -> None:
    # Half of 10 won: the wins of a resample are binomial(10, 1/2): at most 1 in 0.011, at most 2 in 0.055.
    found = bootstrap_mean([0.0] * 5 + [1.0] * 5, draws=4000, seed=0)
    assert found == Interval(0.5, 0.2, 0.8, 10)


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_it_is_the_plain_percentile_bootstrap(values: list[float], seed: int) -> None:
    rng = rng_of("bootstrap", seed)
    drawn = np.array(values)[rng.integers(0, len(values), size=(500, len(values)))]
    low, high = np.percentile(drawn.sum(axis=1) / len(values), [2.5, 97.5])
    found = bootstrap_mean(values, draws=500, seed=seed)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.mean == pytest.approx(np.mean(values))


def test_draws_in_chunks_are_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = list(np.linspace(0, 1, 17))
    whole = bootstrap_mean(values, draws=300, seed=4)
    monkeypatch.setattr("pivotopd.diagnosis.bootstrap._CHUNK", 17 * 7)
    assert bootstrap_mean(values, draws=300, seed=4) == whole
    assert bootstrap_mean(values, draws=300, seed=5) != whole


def test_a_ratio_draws_episodes_and_not_their_repeats() -> None:
    # Three won replays of 4 turns of one episode, one of 20 turns of another: 32 / 4 = 8 turns a won replay.
    # Resamples: only the first (4), only the second (20), or both (8).
    assert bootstrap_ratio([12.0, 20.0], [3.0, 1.0], draws=4000, seed=0) == Interval(8.0, 4.0, 20.0, 2)
    # Without any won replay in a resample there is no mean to take: it is left out.
    assert bootstrap_ratio([12.0, 0.0], [3.0, 0.0], draws=4000, seed=0) == Interval(4.0, 4.0, 4.0, 1)
    assert bootstrap_ratio([0.0, 0.0], [0.0, 0.0], draws=4000, seed=0) is None
