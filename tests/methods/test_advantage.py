"""Hand-computed group advantages, and what must hold for any returns and penalties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.errors import NumericsError
from pivotopd.methods.advantage import outcome_advantages
from pivotopd.methods.base import Row, Source


def row(
    episode: str,
    episode_return: float,
    penalty: float = 0.0,
    *,
    group: str = "g",
    source: Source = "rollout",
    tokens: int = 2,
) -> Row:
    zeros = np.zeros(tokens, np.float32)
    return Row(episode, group, source, episode_return, penalty, zeros, None, None, np.ones(tokens, np.bool_))


def three_turns(second_return: float) -> list[Row]:
    """Episode a: 3 turns, the second invalid; episode b: 3 valid turns."""
    return [
        row("a", 10.0),
        row("a", 10.0, 0.3),
        row("a", 10.0),
        row("b", second_return),
        row("b", second_return),
        row("b", second_return),
    ]


def test_three_turn_two_episode_example() -> None:
    # scores: a (10 + 9.7 + 10) / 3 = 9.9, b 0; baseline 4.95
    values = outcome_advantages(three_turns(0.0), normalise_std=False)
    assert values == pytest.approx([5.05, 4.75, 5.05, -4.95, -4.95, -4.95], abs=1e-12)


def test_all_fail_group_keeps_its_penalty() -> None:
    rows = [row("a", 0.0), row("a", 0.0, 0.1), row("b", 0.0)]
    # scores: a -0.05, b 0; baseline -0.025
    values = outcome_advantages(rows, normalise_std=False)
    assert values == pytest.approx([0.025, -0.075, 0.025], abs=1e-12)
    assert outcome_advantages(rows, normalise_std=True) == values


def test_unbiased_std_over_episodes_not_rows() -> None:
    rows = [row("a", 10.0)] * 5 + [row("b", 0.0)] + [row("c", 0.0)]
    # R = (10, 0, 0): mean 10/3, unbiased variance 100/3
    scale = (100 / 3) ** 0.5 + 1e-6
    values = outcome_advantages(rows, normalise_std=True)
    assert values == pytest.approx([20 / 3 / scale] * 5 + [-10 / 3 / scale] * 2, abs=1e-12)


def test_group_of_one_and_recovery_rows_give_zero() -> None:
    rows = [row("a", 10.0, 0.1), row("a", 10.0)]
    assert outcome_advantages(rows, normalise_std=False) == [0.0, 0.0]
    mixed = [row("a", 10.0), row("a", 10.0, source="recovery"), row("b", 0.0)]
    assert outcome_advantages(mixed, normalise_std=False) == [5.0, 0.0, -5.0]


def test_groups_do_not_mix() -> None:
    rows = [row("a", 10.0), row("c", 1.0, group="h"), row("b", 0.0), row("d", 3.0, group="h")]
    assert outcome_advantages(rows, normalise_std=False) == [5.0, -1.0, -5.0, 1.0]


def test_return_that_is_not_finite_names_its_episode() -> None:
    with pytest.raises(NumericsError) as caught:
        outcome_advantages([row("bad", float("nan")), row("b", 0.0)], normalise_std=False)
    assert caught.value.where == "episode bad"


returns = st.floats(-100, 100, allow_nan=False)


@given(st.lists(st.tuples(returns, st.integers(1, 5)), min_size=2, max_size=8))
def test_without_penalties_it_is_return_minus_mean(episodes: list[tuple[float, int]]) -> None:
    rows = [row(str(i), value) for i, (value, turns) in enumerate(episodes) for _ in range(turns)]
    mean = np.mean([value for value, _ in episodes])
    values = outcome_advantages(rows, normalise_std=False)
    expected = [value - mean for value, turns in episodes for _ in range(turns)]
    assert values == pytest.approx(expected, abs=1e-9)


@given(returns, st.integers(2, 8), st.booleans())
def test_equal_returns_give_exact_zeros(value: float, episodes: int, normalise: bool) -> None:
    rows = [row(str(i), value) for i in range(episodes) for _ in range(3)]
    assert outcome_advantages(rows, normalise_std=normalise) == [0.0] * len(rows)


@given(returns, returns, st.floats(0.001, 1.0))
def test_an_invalid_row_is_lower_by_the_penalty(first: float, second: float, penalty: float) -> None:
    rows = [row("a", first), row("a", first, penalty), row("b", second)]
    valid, invalid, _ = outcome_advantages(rows, normalise_std=False)
    assert valid - invalid == pytest.approx(penalty, abs=1e-12)
