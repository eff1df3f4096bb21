"""Ratios: known times give known ratios, and the interval is the bootstrap's."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from benchmarks.ratios import (
    Block,
    Cost,
    Ratio,
    abba,
    bootstrap_interval,
    growth,
    machine,
    measure,
    passes,
    speedup,
    versions,
    worse,
)


def block(a_s: float, b_s: float, a_units: int = 1, b_units: int = 1) -> Block[Cost]:
    return Block(Cost(a_units, a_s, a_s / 2), Cost(b_units, b_s, b_s / 4))


def test_ratio_is_the_median_of_the_blocks_per_unit() -> None:
    # per unit: 2/1, 8/2, 16/2 -> 2, 4, 8
    blocks = [block(1, 2), block(2, 8), block(10, 32, a_units=5, b_units=2)]
    ratio = speedup(blocks)
    assert ratio.blocks == pytest.approx((2, 4, 8))
    assert ratio.median == pytest.approx(4)
    assert ratio.low == pytest.approx(2)
    assert ratio.high == pytest.approx(8)


def test_cpu_clock_reads_the_cpu_seconds() -> None:
    assert speedup([block(1, 2)], clock="cpu_s").median == pytest.approx(1)  # (2/4) / (1/2)


def test_equal_blocks_give_an_interval_without_width() -> None:
    ratio = speedup([block(0.5, 1.5)] * 7)
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((3, 3, 3))


def test_interval_holds_the_median_and_ignores_one_wild_block() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 50.0]
    low, high = bootstrap_interval(values, seed=3)
    assert 0.9 <= low <= 1.02 <= high <= 1.1
    assert bootstrap_interval(values, seed=3) == (low, high)


def test_interval_of_two_values() -> None:
    # medians of resamples of {0, 2}: 0, 1, 2 with probabilities 1/4, 1/2, 1/4
    assert bootstrap_interval([0.0, 2.0], seed=0) == (0.0, 2.0)
    assert bootstrap_interval([0.0, 2.0], seed=0, level=0.4) == (1.0, 1.0)


def test_interval_narrows_with_a_lower_level() -> None:
    values = [float(v) for v in range(11)]
    wide, narrow = bootstrap_interval(values, seed=0), bootstrap_interval(values, seed=0, level=0.5)
    assert wide[0] < narrow[0] <= 5 <= narrow[1] < wide[1]


def test_blocks_are_abba_and_the_warm_up_is_dropped() -> None:
    order: list[str] = []

    def run(name: str) -> Cost:
        order.append(name)
        return Cost(1, float(len(order)), 0.0)

    kept = abba(lambda: run("a"), lambda: run("b"), blocks=2, warmup=1)
    assert "".join(order) == "abba" * 3
    # the first block (times 1 to 4) is gone: 5 + 8 and 6 + 7, then 9 + 12 and 10 + 11
    assert [(one.a.wall_s, one.b.wall_s) for one in kept] == [(13, 13), (21, 21)]
    assert kept[0].a.units == 2


def test_measure_counts_units_and_time() -> None:
    cost = measure(lambda: time.sleep(0.01) or 7)
    assert cost.units == 7
    assert cost.wall_s >= 0.01
    assert cost.cpu_s >= 0


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="needs values"):
        bootstrap_interval([], seed=0)
    with pytest.raises(ValueError, match="no work"):
        speedup([block(0.0, 1.0)])
    with pytest.raises(ValueError, match="no work"):
        speedup([block(1.0, 1.0, a_units=0)])
    with pytest.raises(ValueError, match="at least one block"):
        abba(lambda: Cost(1, 1, 1), lambda: Cost(1, 1, 1), blocks=0)


def test_machine_and_versions_name_what_ran() -> None:
    described = machine()
    assert described["cores"] >= 1
    assert described["memory_gib"] > 0
    found = versions(["numpy", "no-such-package"])
    assert "no-such-package" not in found
    assert found["numpy"][0].isdigit()


def test_passes_run_the_base_at_both_ends_and_turn_the_order() -> None:
    order: list[str] = []

    def arm(name: str) -> Callable[[], Cost]:
        def work() -> Cost:
            order.append(name)
            return Cost(1, 1.0, 1.0)

        return work

    blocks = passes({name: arm(name) for name in ("base", "one", "two")}, "base", 2, warmup=0)
    assert order == ["base", "one", "two", "base", "base", "two", "one", "base"]
    assert blocks[0]["base"].units == 2
    assert blocks[1]["one"].units == 1
    order.clear()
    blocks = passes({name: arm(name) for name in ("base", "one")}, "base", 2, warmup=0, shared=True)
    assert order == ["base", "one", "base", "one", "base"]
    assert [block["base"].units for block in blocks] == [2, 2]
    with pytest.raises(ValueError, match="at least one block"):
        passes({"base": arm("base")}, "base", 0)


def test_growth_is_the_exponent() -> None:
    assert growth([1, 2, 4], [3, 12, 48]) == pytest.approx(2.0)
    assert growth([1, 10], [5, 5]) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="no exponent"):
        growth([1, 1], [2, 3])
    with pytest.raises(ValueError, match="no exponent"):
        growth([1, 2], [0, 3])


def test_the_worse_of_two_clocks() -> None:
    one, two = Ratio(3.0, 1.0, 4.0, ()), Ratio(2.0, 1.5, 5.0, ())
    assert worse(one, two) is one
    assert worse(one, two, more_is_better=False) is two
