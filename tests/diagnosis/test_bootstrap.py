"""The bootstrap's interval: exact where it can be, of the right width, and the same every time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.diagnosis.bootstrap import Interval, mean_interval


def test_equal_values_leave_nothing_open() -> None:
    assert mean_interval([0.25] * 7, draws=100, seed=0) == Interval(0.25, 0.25, 0.25)
    assert mean_interval([3.0], draws=10, seed=0) == Interval(3.0, 3.0, 3.0)


def test_two_values_are_drawn_in_all_ways() -> None:
    """Means of two draws from {0, 1} are 0, 1/2, 1 with shares 1/4, 1/2, 1/4."""
    assert mean_interval([0.0, 1.0], draws=4000, seed=0) == Interval(0.5, 0.0, 1.0)
    assert mean_interval([0.0, 1.0], draws=4000, seed=0, level=0.4) == Interval(0.5, 0.5, 0.5)


def test_the_width_is_that_of_the_normal_approximation() -> None:
    """Of 400 flags, half set: 1.96 * sqrt(0.25 / 400) = 0.049 to each side."""
    found = mean_interval([0.0, 1.0] * 200, draws=4000, seed=0)
    assert found.mean == 0.5
    assert found.low == pytest.approx(0.451, abs=0.004)
    assert found.high == pytest.approx(0.549, abs=0.004)


def test_draws_are_named_by_their_seed() -> None:
    values = [float(value) for value in range(30)]
    once = mean_interval(values, draws=500, seed=0)
    assert once == mean_interval(values, draws=500, seed=0)
    assert once != mean_interval(values, draws=500, seed=1)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_an_interval_stays_inside_its_sample(values: list[float]) -> None:
    found = mean_interval(values, draws=50, seed=0)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9


def test_what_has_no_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_interval([], draws=10, seed=0)
    with pytest.raises(ValueError, match="level"):
        mean_interval([1.0], draws=10, seed=0, level=1.0)
