"""Ratios on a noisy machine: A and B in interleaved ABBA blocks, one log-ratio a block, a bootstrap interval.

Neighbours on a shared machine slow both sides of a block alike, so a block's ratio moves less than its times.
CPU seconds stand beside wall seconds because waiting for a core does not count in them.
"""

from __future__ import annotations

import math
import os
import platform
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from pivotopd.seeds import rng_of

RESAMPLES = 10_000
"""Bootstrap resamples behind an interval."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What some work took.

    Attributes:
        units: Units of work done: steps, resets, restores.
        wall_s: Seconds on the clock.
        cpu_s: Seconds of CPU of this process and its ended children.
    """

    units: int
    wall_s: float
    cpu_s: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.units + other.units, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


class Addable(Protocol):
    """What one run returns: costs that add up."""

    def __add__(self, other: Self) -> Self: ...


T = TypeVar("T", bound=Addable)


@dataclass(frozen=True)
class Block(Generic[T]):
    """One ABBA block: both runs of A added up, and both of B."""

    a: T
    b: T


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster A does a unit of work than B: the median over blocks.

    Attributes:
        median: Median of the blocks' ratios.
        low: Lower end of the bootstrap 95 % interval of the median.
        high: Its upper end.
        blocks: Each block's ratio.
    """

    median: float
    low: float
    high: float
    blocks: tuple[float, ...]


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(work: Callable[[], int]) -> Cost:
    """Run ``work`` once.

    Args:
        work: Does the work and returns how many units it did.
    """
    wall, cpu = time.perf_counter(), cpu_seconds()
    units = work()
    return Cost(units, time.perf_counter() - wall, cpu_seconds() - cpu)


def abba(a: Callable[[], T], b: Callable[[], T], blocks: int, warmup: int = 1) -> list[Block[T]]:
    """Run A, B, B, A in blocks.

    Args:
        a: One run of A, measured by itself so that it can leave its preparations out.
        b: One run of B.
        blocks: Blocks to keep.
        warmup: Blocks to run and drop before them.

    Raises:
        ValueError: No block is asked for.
    """
    if blocks < 1 or warmup < 0:
        raise ValueError(f"{blocks} blocks after {warmup}: at least one block is needed")
    kept = []
    for index in range(warmup + blocks):
        first_a, first_b, second_b, second_a = a(), b(), b(), a()
        if index >= warmup:
            kept.append(Block(first_a + second_a, first_b + second_b))
    return kept


def passes(
    arms: Mapping[str, Callable[[], T]], base: str, blocks: int, warmup: int = 1, *, shared: bool = False
) -> list[Mapping[str, T]]:
    """Run many arms against one base: in each block all of them once, between two runs of the base.

    The order of the arms is reversed in every second block, so that a drift favours none of them.

    Args:
        arms: One run of each, by name; the base among them.
        base: Name of the base; its two runs of a block are added up.
        blocks: Blocks to keep.
        warmup: Blocks to run and drop before them.
        shared: A block's second run of the base is the first one of the next block: for long runs.

    Raises:
        ValueError: No block is asked for.
    """
    if blocks < 1 or warmup < 0:
        raise ValueError(f"{blocks} blocks after {warmup}: at least one block is needed")
    last: T | None = None
    others = [name for name in arms if name != base]
    kept: list[Mapping[str, T]] = []
    for index in range(warmup + blocks):
        first = last if shared and last is not None else arms[base]()
        found = {name: arms[name]() for name in (others if index % 2 == 0 else reversed(others))}
        last = arms[base]()
        found[base] = first + last
        if index >= warmup:
            kept.append(found)
    return kept


def worse(one: Ratio, two: Ratio, *, more_is_better: bool = True) -> Ratio:
    """Return the ratio whose bad end is worse: what two clocks agree on at least."""
    if more_is_better:
        return one if one.low <= two.low else two
    return one if one.high >= two.high else two


def growth(sizes: Sequence[float], works: Sequence[float]) -> float:
    """Return the exponent e of work ~ size^e: the slope of a line through the logarithms.

    Raises:
        ValueError: Fewer than two sizes, or something is not positive.
    """
    if len(set(sizes)) < 2 or min(*sizes, *works) <= 0:
        raise ValueError(f"no exponent of {list(works)} at {list(sizes)}")
    return float(np.polyfit(np.log(sizes), np.log(works), 1)[0])


def speedup(blocks: Sequence[Block[Cost]], *, clock: str = "wall_s", seed: int = 0) -> Ratio:
    """Return how many times faster A is than B, per unit of work.

    Args:
        blocks: The blocks.
        clock: ``wall_s`` or ``cpu_s``.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: There is no block, or one took no time or did no work.
    """
    logs = []
    for block in blocks:
        per_unit = [(getattr(cost, clock) / cost.units if cost.units else 0.0) for cost in (block.a, block.b)]
        if min(per_unit) <= 0:
            raise ValueError(f"a block did no work or took no measurable time: {block}")
        logs.append(math.log(per_unit[1] / per_unit[0]))
    low, high = bootstrap_interval(logs, seed=seed)
    median = math.exp(float(np.median(logs)))
    return Ratio(median, math.exp(low), math.exp(high), tuple(math.exp(value) for value in logs))


def bootstrap_interval(
    values: Sequence[float], *, seed: int, level: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the median.

    Args:
        values: One value a block.
        seed: Seed of the resampling.
        level: Coverage of the interval.
        resamples: How often to resample.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("an interval needs values")
    sample = np.asarray(values, dtype=np.float64)
    draws = rng_of(seed, "bootstrap").integers(len(sample), size=(resamples, len(sample)))
    medians = np.median(sample[draws], axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def machine() -> dict[str, str | int | float]:
    """Describe the machine: processor, cores, memory, and the load when called."""
    cpuinfo = Path("/proc/cpuinfo")
    rows = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = [row.partition(":")[2].strip() for row in rows if row.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return Python's version and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
