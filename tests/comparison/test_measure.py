"""Figures of evaluations against numbers counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pivotopd.comparison.intervals import mean_by_type, mean_over, ratio_over
from pivotopd.comparison.measure import (
    MistakeOutcome,
    Paired,
    TaskOutcome,
    evaluated,
    first_reaching,
    rates_of,
    summarise,
)
from pivotopd.diagnosis.bootstrap import Interval, bootstrap_mean
from pivotopd.records import Episode, Replay
from tests.comparison.cases import FAMILIES, outcomes


def ends(interval: Interval | None) -> tuple[float, float, float] | None:
    return None if interval is None else (interval.mean, interval.low, interval.high)


def episode(task: str, family: str, sample: int, *, won: bool) -> Episode:
    end = "won" if won else "turn_limit"
    return Episode(
        "run", 5, f"panel/{task}/{sample:02d}", task, "hash", family, f"panel/{task}", sample, 1, float(won),
        won, float(won), end, None, 4, "alfworld 1", "data", "policy",
    )  # fmt: skip


def replay(mistake: str, index: int, *, won: bool, turns: int, distance: int | None = 3) -> Replay:
    return Replay(
        "run", 5, mistake, "task", "type", 2, f"state of {mistake}", distance, index, 1, won, turns,
        "won" if won else "turn_limit", "policy",
    )  # fmt: skip


# ------------------------------------------------------------------------ from records


def test_samples_of_a_task_and_replays_of_a_mistake_are_taken_together() -> None:
    episodes = [
        episode("b", "heat", 0, won=True),
        episode("a", "pick", 0, won=True),
        episode("a", "pick", 1, won=False),
    ]
    replays = [
        replay("m", 0, won=True, turns=4),
        replay("m", 1, won=True, turns=7),
        replay("m", 2, won=False, turns=20),
        replay("l", 0, won=False, turns=20, distance=None),
    ]
    found = evaluated(5, "policy", episodes, replays)
    assert found.tasks == (TaskOutcome("a", "pick", 0.5), TaskOutcome("b", "heat", 1.0))
    assert found.mistakes == (
        MistakeOutcome(("l", "state of l"), 1, 0, 0, None),
        MistakeOutcome(("m", "state of m"), 3, 2, 11, 3),
    )
    assert [mistake.rate for mistake in found.mistakes] == [0.0, 2 / 3]


# ---------------------------------------------------------------------------- figures


def test_success_is_by_type_and_its_mean_does_not_weigh_them() -> None:
    """Tasks take turns in two types: the first has won 1, 1, 0; the second 0, 1."""
    found = summarise("arm", 0, [outcomes(10, [1, 0, 1, 1, 0], [])], {})
    assert found.by_family[FAMILIES[0]].mean == pytest.approx(2 / 3)
    assert found.by_family[FAMILIES[1]].mean == pytest.approx(1 / 2)
    assert found.family_mean.mean == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found.success.mean == pytest.approx(3 / 5)
    assert found.success == bootstrap_mean([1, 0, 1, 1, 0], draws=4000, seed=0)
    assert found.recovery is None


def test_recovery_counts_each_mistake_the_same_and_turns_of_recovered_replays() -> None:
    """Two seeds, three mistakes, four replays; each recovered replay took five turns."""
    seeds = [outcomes(10, [1.0], [4, 2, 0]), outcomes(10, [1.0], [4, 0, 0])]
    reference = {("panel/00", "state"): 0.5, ("panel/01", "state"): 0.25, ("panel/02", "state"): 0.75}
    found = summarise("arm", None, seeds, reference).recovery
    assert found is not None
    assert (found.mistakes, found.replays, found.recovered) == (3, 24, 10)
    assert found.rate.mean == pytest.approx(10 / 24)
    assert ends(found.turns) == (5.0, 5.0, 5.0)
    assert found.optimal == pytest.approx((3 + 4 + 5) / 3)
    assert found.paired == Paired(improved=1, worsened=1, unchanged=1)


def test_a_policy_that_always_fails_and_one_that_never_does() -> None:
    fails = summarise("arm", 0, [outcomes(10, [0, 0, 0], [0, 0])], {("panel/00", "state"): 0.0})
    assert ends(fails.family_mean) == (0.0, 0.0, 0.0)
    assert fails.recovery is not None
    assert ends(fails.recovery.rate) == (0.0, 0.0, 0.0)
    assert fails.recovery.turns is None
    assert fails.recovery.paired == Paired(0, 0, 1), "a mistake that the reference never met is left out"
    wins = summarise("arm", 0, [outcomes(10, [1, 1, 1], [])], {})
    assert ends(wins.family_mean) == (1.0, 1.0, 1.0)
    assert wins.recovery is None


def test_a_reference_without_common_mistakes_compares_nothing() -> None:
    found = summarise("arm", 0, [outcomes(10, [1.0], [1])], {("other", "state"): 1.0})
    assert found.recovery is not None
    assert found.recovery.paired is None


def test_mistakes_that_only_some_seeds_met_count_where_they_were_met() -> None:
    found = summarise("arm", None, [outcomes(10, [1.0], [4]), outcomes(10, [1.0], [0, 0])], None).recovery
    assert found is not None
    assert found.mistakes == 1.5
    assert found.rate.mean == pytest.approx(1 / 3)


def test_rates_are_averaged_over_seeds() -> None:
    assert rates_of([outcomes(10, [1.0], [4, 0]), outcomes(10, [1.0], [2])]) == {
        ("panel/00", "state"): 0.75,
        ("panel/01", "state"): 0.0,
    }


@pytest.mark.parametrize(("level", "reached"), [(0.0, 0), (0.5, 5), (0.6, 10), (0.9, None)])
def test_the_first_evaluated_iteration_at_a_level(level: float, reached: int | None) -> None:
    assert first_reaching({0: 0.1, 10: 0.8, 5: 0.5, 15: 0.7}, level) == reached
    assert first_reaching({}, level) is None


# -------------------------------------------------------------------------- intervals


def test_seeds_that_differ_widen_the_interval() -> None:
    """Tasks say nothing here, each seed wins all or none: the interval is over seeds alone."""
    apart = mean_over(np.array([[1.0] * 50, [0.0] * 50]))
    assert ends(apart) == (0.5, 0.0, 1.0)
    alike = mean_over(np.array([[1.0, 0.0] * 25] * 2))
    assert alike.mean == 0.5
    assert alike.high - alike.low < 0.3


def test_types_are_drawn_apart() -> None:
    """One type is always won and the other never: nothing is left open, in the mean neither."""
    by_type, mean = mean_by_type(np.array([[1.0, 1.0, 1.0, 0.0]]), ["a", "a", "a", "b"])
    assert {name: ends(one) for name, one in by_type.items()} == {"a": (1.0, 1.0, 1.0), "b": (0.0, 0.0, 0.0)}
    assert ends(mean) == (0.5, 0.5, 0.5)


def test_a_ratio_weighs_by_what_is_counted() -> None:
    sums, counts = np.array([[12.0, 0.0, 3.0]]), np.array([[3.0, 0.0, 1.0]])
    found = ratio_over(sums, counts, draws=2000)
    assert found is not None
    assert found.mean == 15 / 4
    assert (found.low, found.high) == (3.0, 4.0)
    assert ratio_over(sums, np.zeros((1, 3)), draws=10) is None
