"""How work grows with rollouts, turns, and pivots x K: exponents of exact counts and of CPU seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.iteration import Bench, Outcome, Shape, student_folder
from benchmarks.ratios import bootstrap_interval, growth
from benchmarks.result import Count, Measure

GATE, AIM = 1.10, 1.05
Work = Callable[[Outcome], float]
Size = Callable[[Shape, Outcome], float]


@dataclass(frozen=True, slots=True)
class Axis:
    """Something that an iteration has more or less of.

    Attributes:
        name: Name in the result.
        label: For people.
        shapes: Iterations from small to large.
        size: What there is more of, as counted.
        works: Exact counts that grow with it, by name.
        seconds: Parts of ``stage/phase`` whose time grows with it.
    """

    name: str
    label: str
    shapes: Sequence[Shape]
    size: Size
    works: Mapping[str, Work]
    seconds: tuple[str, ...]


def axes(*, quick: bool = False) -> list[Axis]:
    """Return rollouts, turns, and pivots x K."""
    turns, tasks, limits = (8, (1, 2), (4, 8)) if quick else (16, (1, 2, 4, 8), (8, 16, 32, 64))
    most = 2 if quick else 8
    everything = {"env_steps": _env, "engine_tokens": _engine, "trained_tokens": _learner}
    rollouts = [Shape(depth=2, tasks=one, max_turns=turns, chains=2 * one) for one in tasks]
    by_turns = [Shape(depth=2, tasks=1, max_turns=one, chains=2) for one in limits]
    depths = (1, 2) if quick else (1, 2, 4)
    chains = [
        Shape(depth=depth, tasks=1 if quick else 4, max_turns=turns, chains=cap)
        for cap, depth in [(most // 2, depths[0]), *((most, depth) for depth in depths)]
    ]
    recovered = {
        "teacher_queries": lambda one: one.own["recover/teacher_queries"],
        "recovery_rows": lambda one: one.own["recover/recovery_rows"],
    }
    return [
        Axis("rollouts", "rollouts", rollouts, lambda _, one: one.own["rollout/episodes"], everything, ("",)),
        Axis("turns", "turns of an episode", by_turns, _turns, everything, ("",)),
        Axis("chains", "pivots x K", chains, _planned, recovered, ("recover/",)),
    ]


def _env(one: Outcome) -> float:
    return one.counts.env_steps


def _engine(one: Outcome) -> float:
    counts = one.counts
    generated = counts.prompt_tokens - counts.cached_prompt_tokens + counts.generated_tokens
    return generated + counts.scored_context_tokens + counts.scored_tokens


def _learner(one: Outcome) -> float:
    return one.counts.training_input_tokens


def _rollout_turns(one: Outcome) -> int:
    return one.own["update/rows"] - one.own["update/recovery_rows"]


def _turns(_: Shape, one: Outcome) -> float:
    return _rollout_turns(one) / one.own["rollout/episodes"]


def _planned(shape: Shape, one: Outcome) -> float:
    """Return chains x K: those that were begun, times the depth that they may reach."""
    never = ("over_cap", "episode_over")
    begun = one.own["recover/chains"] - sum(one.own.get(f"recover/stopped_{why}", 0) for why in never)
    return begun * shape.depth


def measure(*, quick: bool = False) -> list[Measure]:
    """Return the exponents."""
    bench = Bench(student_folder())
    try:
        bench.run(axes(quick=quick)[0].shapes[0])  # libraries load once
        found = []
        for axis in axes(quick=quick):
            laps = [[bench.run(shape) for shape in axis.shapes] for _ in range(1 if quick else 3)]
            found += [*_by_counts(axis, laps[0]), _by_seconds(axis, laps)]
        return [*found, _flat(bench, quick)]
    finally:
        bench.close()


def _by_counts(axis: Axis, lap: Sequence[Outcome]) -> list[Measure]:
    sizes = [axis.size(*both) for both in zip(axis.shapes, lap, strict=True)]
    found = []
    for name, work in axis.works.items():
        works = [work(one) for one in lap]
        exponent = growth(sizes, works)
        counts: dict[str, Count] = {f"at_{size:g}": value for size, value in zip(sizes, works, strict=True)}
        found.append(
            Measure(
                name=f"growth/{axis.name}/{name}",
                label=f"{name.replace('_', ' ')} with {axis.label}",
                value=exponent,
                low=exponent,
                high=exponent,
                unit="",
                better="less",
                gate=GATE,
                aim=AIM,
                clock="counts",
                counts=counts,
                note="exponent",
            )
        )
    return found


def _by_seconds(axis: Axis, laps: Sequence[Sequence[Outcome]]) -> Measure:
    """Return the exponent of the time; for a part of an iteration that is the stages' own wall seconds."""
    whole = axis.seconds == ("",)
    sizes = [axis.size(*both) for both in zip(axis.shapes, laps[0], strict=True)]

    def took(one: Outcome) -> float:
        return one.cost.cpu_s if whole else one.seconds_of(*axis.seconds)

    exponents = [growth(sizes, [took(one) for one in lap]) for lap in laps]
    low, high = bootstrap_interval(exponents, seed=0)
    return Measure(
        name=f"growth/{axis.name}/seconds",
        label=f"{'CPU seconds' if whole else 'seconds of recovery'} with {axis.label}",
        value=sorted(exponents)[len(exponents) // 2],
        low=low,
        high=high,
        unit="",
        better="less",
        gate=GATE,
        aim=AIM,
        clock="cpu" if whole else "wall",
        counts={
            f"seconds_at_{size:g}": round(took(one), 3) for size, one in zip(sizes, laps[-1], strict=True)
        },
        note="exponent; fixed costs make it smaller",
    )


def _flat(bench: Bench, quick: bool) -> Measure:
    """Return how much more a higher cap costs where there are no more pivots: nothing."""
    shape = Shape(depth=2, tasks=1, max_turns=8 if quick else 16, chains=10_000)
    one, two = bench.run(shape), bench.run(Shape(depth=2, tasks=1, max_turns=shape.max_turns, chains=20_000))
    queries = [outcome.own["recover/teacher_queries"] for outcome in (one, two)]
    if one.content != two.content:
        raise SystemExit("a cap that does not bind changed the result")
    return Measure(
        name="growth/cap",
        label="teacher queries with a cap twice as high that does not bind",
        value=queries[1] / max(1, queries[0]),
        low=queries[1] / max(1, queries[0]),
        high=queries[1] / max(1, queries[0]),
        better="less",
        gate=1.0,
        clock="counts",
        counts={"queries": queries[0], "queries_at_twice_the_cap": queries[1]},
    )
