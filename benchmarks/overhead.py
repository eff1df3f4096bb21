"""What K = 0, 1, 2, 4 add to our own GRPO iteration: snapshots, latency, lessons; stock engine and replay.

Every arm plays the same episodes with the same policy and seeds, and recovers the same number of chains: the
cap of 0.5 a rollout binds, as in the paper. The base has the reference's pass that the KL term needs, as
every iteration but a run's first. The label stage (detection) is inside; the paper's figures leave it out, so
its share stands beside each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.iteration import Bench, Outcome, Shape, student_folder
from benchmarks.ratios import Block, Cost, Ratio, passes, speedup, worse
from benchmarks.result import Count, Measure

BASE = "grpo"
GATES = {1: (10.0, 5.0), 2: (25.0, 10.0), 4: (40.0, 15.0)}
"""K to gate and aim, in percent of the GRPO iteration."""
LATENCY_S = 0.5
PUBLISHED = {1: 12.4, 2: 94.2, 3: 112.3}
"""Overhead in percent that the paper reports (arXiv 2609.40285, App. E.1); K = 4 is not reported."""
DEPTHS = (0, 1, 2, 4)
TINY = Shape(tasks=2, group_size=2, max_turns=6, chains=2)

Blocks = Sequence[Mapping[str, Outcome]]


def measure(*, quick: bool = False) -> list[Measure]:
    """Return the overheads with a teacher that answers at once."""
    bench = Bench(student_folder())
    try:
        native = _shapes(quick)
        bench.run(native[BASE])  # libraries load once; a whole block to warm up would be half a minute
        blocks = _run(bench, native, 1 if quick else 7, warmup=0)
        return list(_native(native, blocks))
    finally:
        bench.close()


def measure_latency(*, quick: bool = False) -> list[Measure]:
    """Return the overheads with a teacher that takes its time, over as many episodes as in the paper.

    A round's seconds are the same in every iteration, so what they weigh depends on how long that is.
    Iterations are streamed, and neighbouring blocks share a run of the base, since a run takes a while.
    """
    bench = Bench(student_folder())
    try:
        late = _late_shapes(quick)
        bench.run(replace(late[BASE], tasks=TINY.tasks))  # libraries load once
        return list(_native(late, _run(bench, late, 1 if quick else 5, warmup=0, shared=True)))
    finally:
        bench.close()


def measure_stock(*, quick: bool = False) -> list[Measure]:
    """Return the overheads with the stock engine and replay: the shape that the paper published."""
    bench = Bench(student_folder())
    try:
        stock = _stock_shapes(quick)
        return list(_stock(stock, _run(bench, stock, 1 if quick else 2, warmup=0)))
    finally:
        bench.close()


def _shapes(quick: bool) -> dict[str, Shape]:
    base = TINY if quick else Shape(tasks=8, chains=16)
    shapes = {BASE: replace(base, method="grpo", depth=0)}
    shapes |= {f"k{depth}": replace(base, depth=depth) for depth in DEPTHS}
    return shapes | {"k2/lesson": replace(base, depth=2, lessons=True)}


def _late_shapes(quick: bool) -> dict[str, Shape]:
    base = TINY if quick else Shape(tasks=16, group_size=8, chains=64)
    base = replace(base, latency_s=LATENCY_S, streaming="exact")
    shapes = {BASE: replace(base, method="grpo", depth=0, latency_s=0.0)}
    return shapes | {f"k{depth}/latency": replace(base, depth=depth) for depth in GATES}


def _stock_shapes(quick: bool) -> dict[str, Shape]:
    base = replace(TINY if quick else Shape(tasks=2, max_turns=16, chains=4), stock=True)
    shapes = {BASE: replace(base, method="grpo", depth=0)}
    return shapes | {f"k{depth}": replace(base, depth=depth) for depth in (1, 2, 3)}


def _run(
    bench: Bench, shapes: Mapping[str, Shape], blocks: int, warmup: int, *, shared: bool = False
) -> Blocks:
    arms = {name: partial(bench.run, shape) for name, shape in shapes.items()}
    found = passes(arms, BASE, blocks, warmup, shared=shared)
    check_equal(found)
    return found


def check_equal(blocks: Blocks) -> None:
    """Refuse a comparison of arms that did not play the same episodes or differ between blocks.

    Raises:
        SystemExit: They differ, so their times say nothing.
    """
    rollouts = {one.content["rollout"] for block in blocks for one in block.values()}
    if len(rollouts) != 1:
        raise SystemExit(f"The arms played different episodes, nothing was compared: {sorted(rollouts)}")
    for name in blocks[0]:
        for stage in ("label", "recover"):
            depth = name.partition("/")[0]
            made = {
                one.content.get(stage)
                for block in blocks
                for other, one in block.items()
                if other.partition("/")[0] == depth and "lesson" not in other
            }
            if len(made) > 1:
                raise SystemExit(f"{stage} of {name} differs between runs, nothing was compared")


def overhead(blocks: Blocks, name: str, clock: str) -> Ratio:
    """Return how many times as long as the base an arm takes."""
    return speedup([Block[Cost](block[BASE].cost, block[name].cost) for block in blocks], clock=clock)


def _percent(ratio: Ratio) -> tuple[float, float, float]:
    return 100 * (ratio.median - 1), 100 * (ratio.low - 1), 100 * (ratio.high - 1)


def _share(block: Mapping[str, Outcome], name: str, *parts: str) -> float:
    """Return the seconds of phases of an arm, in percent of the base."""
    return 100 * block[name].seconds_of(*parts) / (block[BASE].cost.wall_s / 2)


def _counts(shape: Shape, blocks: Blocks, name: str) -> dict[str, Count]:
    """Return what an arm did, exactly, and what stands beside it in the other clock."""
    one, base = blocks[0][name], blocks[0][BASE].counts
    chains = one.own.get("recover/chains", 0) - one.own.get("recover/stopped_over_cap", 0)
    ahead = [_share(block, name, "label/ahead", "recover/ahead") for block in blocks]
    detection = [_share(block, name, "label/") - _share(block, name, "label/ahead") for block in blocks]
    trained = 100 * (one.counts.training_input_tokens / base.training_input_tokens - 1)
    return {
        "episodes": shape.episodes,
        "turn_limit": shape.max_turns,
        "turns": one.own["update/rows"] - one.own.get("update/recovery_rows", 0),
        "pivots_per_rollout": round(one.own.get("label/pivotal", 0) / shape.episodes, 3),
        "chains_per_rollout": round(chains / shape.episodes, 3),
        "cap_bound": int(one.own.get("recover/stopped_over_cap", 0) > 0),
        "recovery_rows": one.own.get("recover/recovery_rows", 0),
        "teacher_queries": one.own.get("recover/teacher_queries", 0),
        "teacher_latency_s": shape.latency_s,
        "lessons": one.own.get("label/lessons", 0),
        "env_steps": one.counts.env_steps,
        "restores": one.counts.restores,
        "replays": one.counts.replays,
        "generated_tokens": one.counts.generated_tokens,
        "scored_tokens": one.counts.scored_tokens,
        "training_input_tokens": one.counts.training_input_tokens,
        "trained_tokens_more_percent": round(trained, 2),
        "engine_starts": one.counts.engine_starts,
        "detection_percent": round(float(np.median(detection)), 2),
        "scored_ahead_percent": round(float(np.median(ahead)), 2),
        "wall_percent": round(_percent(overhead(blocks, name, "wall_s"))[0], 1),
        "cpu_percent": round(_percent(overhead(blocks, name, "cpu_s"))[0], 1),
        "seconds_of_base": round(blocks[0][BASE].cost.wall_s / 2, 2),
        "blocks": len(blocks),
    }


def _native(shapes: Mapping[str, Shape], blocks: Blocks) -> Iterator[Measure]:
    for name, shape in shapes.items():
        if name == BASE:
            continue
        gate, aim = GATES.get(shape.depth, (None, None))
        wall, cpu = overhead(blocks, name, "wall_s"), overhead(blocks, name, "cpu_s")
        # Waiting for a teacher costs no CPU, so only the clock on the wall can judge it.
        judged = wall if shape.latency_s else worse(wall, cpu, more_is_better=False)
        value, low, high = _percent(judged)
        beside = {True: f", teacher {LATENCY_S} s a round, streamed", False: ""}[shape.latency_s > 0]
        beside += ", a lesson scored at every turn" if shape.lessons else ""
        yield Measure(
            name=f"overhead/{name}",
            label=f"K = {shape.depth} over our GRPO iteration{beside}",
            value=value,
            low=low,
            high=high,
            unit="%",
            better="less",
            gate=gate,
            aim=aim,
            clock="wall" if shape.latency_s else "cpu and wall",
            counts=_counts(shape, blocks, name),
            note="detection included",
        )


def _stock(shapes: Mapping[str, Shape], blocks: Blocks) -> Iterator[Measure]:
    for name, shape in shapes.items():
        if name == BASE:
            continue
        value, low, high = _percent(overhead(blocks, name, "wall_s"))
        yield Measure(
            name=f"overhead/stock/{name}",
            label=f"K = {shape.depth} with stock engine and replay (published {PUBLISHED[shape.depth]} %)",
            value=value,
            low=low,
            high=high,
            unit="%",
            better="less",
            clock="wall",
            counts=_counts(shape, blocks, name) | {"published_percent": PUBLISHED[shape.depth]},
            note="the base plays in the stock engine too; replays run one after the other",
        )
