"""Native against stock ALFWorld engine: same games, same actions, one run; and what the oracle costs.

``python -m benchmarks.environment [--games PATH] [--out FILE] [--quick]``

The two engines must give equal traces before anything is timed. The stock engine runs as its packages are
(``memoise=False``) and has loaded each game before, so its resets are as cheap as they get. Reaching turn 12
is a value restored in the native engine, and a reset with twelve actions played again in the stock one, which
cannot be copied.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ratios import Block, Cost, Ratio, abba, machine, measure, speedup, versions
from pivotopd.environments.alfworld.contract import first_difference, spread
from pivotopd.environments.alfworld.engine import engine_of
from pivotopd.environments.alfworld.games import DATA_VARIABLE, Game, load_games, task_of
from pivotopd.environments.alfworld.generator import generate_games
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.problem import parse_problem
from pivotopd.environments.alfworld.stock import StockEnv
from pivotopd.environments.base import Env, Task
from pivotopd.seeds import rng_of

TURN = 12
"""Turn that is reached again; also the actions of each game."""

NATIVE_REPEATS = 40
"""How often the native engine does the same work in a run, so that the clock can see it."""

TARGETS = {"steps": 1000.0, "resets": 50.0, "first_resets": 50.0, "reach": 5000.0}
"""Ratios aimed at; a ratio meets its target if its interval's low end does."""

LABELS = {
    "steps": "steps, with their admissible list",
    "resets": "resets of a game seen before",
    "first_resets": "resets, the native one parses the game",
    "reach": f"reach turn {TURN}: restore against replay",
}


@dataclass(frozen=True, slots=True)
class Costs:
    """What one run of an engine took, by kind of work."""

    steps: Cost
    resets: Cost
    first_resets: Cost
    reach: Cost

    def __add__(self, other: Costs) -> Costs:
        return Costs(
            self.steps + other.steps,
            self.resets + other.resets,
            self.first_resets + other.first_resets,
            self.reach + other.reach,
        )


NOTHING = Costs(*[Cost(0, 0.0, 0.0)] * 4)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: rates per second and the ratio of the engines by both clocks."""

    native_per_s: float
    stock_per_s: float
    native_per_cpu_s: float
    stock_per_cpu_s: float
    wall: Ratio
    cpu: Ratio
    target: float
    met: bool


@dataclass(frozen=True, slots=True)
class OracleCost:
    """What the oracle takes for start states, milliseconds of CPU; and the distances it finds, in turns."""

    games: int
    median_ms: float
    p95_ms: float
    max_ms: float
    slowest_game: str
    unsolvable: int
    distance_min: int
    distance_median: float
    distance_max: int


Play = tuple[Game, list[str]]


def plays_of(games: Sequence[Game]) -> list[Play]:
    """Draw admissible actions for each game, so that none of them wins."""
    found = []
    for game in games:
        for attempt in range(100):
            rng = rng_of(attempt, "benchmark", game.id)
            env, actions = NativeEnv(), list[str]()
            answer = env.reset(task_of(game))
            while len(actions) < TURN and not answer.done:
                choices = answer.admissible or ()
                actions.append(choices[int(rng.integers(len(choices)))])
                answer = env.step(actions[-1])
            if not answer.won:
                found.append((game, actions))
                break
    return found


def check_equal(plays: Sequence[Play], engines: dict[str, StockEnv]) -> int:
    """Compare the engines' answers; return how many were equal.

    Raises:
        SystemExit: They differ, so a comparison of their speed means nothing.
    """
    count = 0
    for game, actions in plays:
        answers = []
        for env in (NativeEnv(), engines[game.id]):
            answers.append([env.reset(task_of(game)), *(env.step(action) for action in actions)])
        difference = first_difference(game, "random", actions, *answers)
        if difference is not None:
            raise SystemExit(f"The engines differ, nothing was measured: {difference}")
        count += len(answers[0])
    return count


def _reset(env: Env, task: Task, times: int, *, parse: bool = False) -> int:
    for _ in range(times):
        if parse:
            engine_of.cache_clear()
        env.reset(task, 0)
    return times


def _play(env: Env, actions: Sequence[str]) -> int:
    for action in actions:
        env.step(action)
    return len(actions)


def _restore(env: Env, times: int) -> int:
    for _ in range(times):
        env.restore(env.snapshot())
    return times


def run_native(plays: Sequence[Play]) -> Costs:
    """Do each kind of work in the native engine, many times."""
    env = NativeEnv()
    total = NOTHING
    for game, actions in plays:
        task = task_of(game)
        first = measure(partial(_reset, env, task, 4, parse=True))
        again = measure(partial(_reset, env, task, NATIVE_REPEATS))
        stepped = Cost(0, 0.0, 0.0)
        for _ in range(NATIVE_REPEATS):
            env.reset(task)
            stepped += measure(partial(_play, env, actions))
        total += Costs(stepped, again, first, measure(partial(_restore, env, NATIVE_REPEATS)))
    return total


def run_stock(plays: Sequence[Play], engines: dict[str, StockEnv]) -> Costs:
    """Reset each game and play its actions in the stock engine: that is also how it reaches a turn."""
    total = NOTHING
    for game, actions in plays:
        env = engines[game.id]
        reset = measure(partial(_reset, env, task_of(game), 1))
        stepped = measure(partial(_play, env, actions))
        reached = Cost(1, reset.wall_s + stepped.wall_s, reset.cpu_s + stepped.cpu_s)
        total += Costs(stepped, reset, reset, reached)
    return total


def row_of(kind: str, blocks: Sequence[Block[Costs]]) -> Row:
    """Make the line of one kind of work."""
    own = [Block[Cost](getattr(block.a, kind), getattr(block.b, kind)) for block in blocks]
    native = sum((block.a for block in own[1:]), own[0].a)
    stock = sum((block.b for block in own[1:]), own[0].b)
    wall, cpu = speedup(own), speedup(own, clock="cpu_s")
    return Row(
        native_per_s=native.units / native.wall_s,
        stock_per_s=stock.units / stock.wall_s,
        native_per_cpu_s=native.units / native.cpu_s,
        stock_per_cpu_s=stock.units / stock.cpu_s,
        wall=wall,
        cpu=cpu,
        target=TARGETS[kind],
        met=min(wall.low, cpu.low) >= TARGETS[kind],
    )


def measure_oracle(games: Sequence[Game]) -> OracleCost:
    """Ask for the distance of every game's start state, each once and without its parsing."""
    times, distances = [], []
    for game in games:
        world = parse_problem(game.pddl_problem, game.task_sentence, game.id)
        start = time.process_time()
        distances.append(Oracle(world).distance(world.start))
        times.append(1e3 * (time.process_time() - start))
    known = [distance for distance in distances if distance is not None]
    return OracleCost(
        games=len(games),
        median_ms=float(np.median(times)),
        p95_ms=float(np.quantile(times, 0.95)),
        max_ms=max(times),
        slowest_game=games[int(np.argmax(times))].id,
        unsolvable=len(distances) - len(known),
        distance_min=min(known),
        distance_median=float(np.median(known)),
        distance_max=max(known),
    )


def show(rows: dict[str, Row], oracle: OracleCost, console: Console) -> None:
    """Print the result."""
    table = Table(title="ALFWorld: native against stock engine")
    for name in (
        "per CPU second",
        "native",
        "stock",
        "wall ratio [95 %]",
        "CPU ratio [95 %]",
        "target",
        "met",
    ):
        table.add_column(name, justify="left" if name == "per CPU second" else "right")
    for kind, row in rows.items():
        ratios = [f"{r.median:,.0f} [{r.low:,.0f}, {r.high:,.0f}]" for r in (row.wall, row.cpu)]
        rates = [f"{row.native_per_cpu_s:,.0f}", f"{row.stock_per_cpu_s:,.2f}"]
        table.add_row(LABELS[kind], *rates, *ratios, f">= {row.target:,.0f}", "yes" if row.met else "no")
    console.print(table)
    console.print(
        f"Oracle, start states of {oracle.games} games: median {oracle.median_ms:.2f} ms, "
        f"p95 {oracle.p95_ms:.2f} ms, max {oracle.max_ms:.1f} ms; "
        f"distances {oracle.distance_min} to {oracle.distance_max}, unsolvable {oracle.unsolvable}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, print a table, write a JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--games", default=os.environ.get(DATA_VARIABLE), help="games; generated ones if absent"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/environment.json"))
    parser.add_argument("--quick", action="store_true", help="two games and three blocks: a smoke test")
    options = parser.parse_args(arguments)
    console = Console(width=None if Console().is_terminal else 160)
    games = load_games(options.games) if options.games else list(generate_games(0, "benchmark", 60))
    plays = plays_of(spread(games, 2 if options.quick else 6))
    engines = {game.id: StockEnv(memoise=False) for game, _ in plays}
    before = machine()
    compared = check_equal(plays, engines)
    console.print(f"equal answers: {compared} in {len(plays)} games; measuring")
    blocks = abba(lambda: run_native(plays), lambda: run_stock(plays, engines), 3 if options.quick else 7)
    rows = {kind: row_of(kind, blocks) for kind in TARGETS}
    oracle = measure_oracle(games[:200] if options.quick else games)
    show(rows, oracle, console)
    result = {
        "benchmark": "environment",
        "quick": options.quick,
        "games": {
            "source": "path" if options.games else "generator, seed 0",
            "timed": [g.id for g, _ in plays],
        },
        "counts": {
            "blocks": len(blocks),
            "turn": TURN,
            "equal_answers": compared,
            "oracle_games": len(games),
        },
        "rows": {kind: asdict(row) for kind, row in rows.items()},
        "oracle": asdict(oracle),
        "machine": {"before": before, "after": machine()},
        "versions": versions(["alfworld", "textworld", "fast-downward-textworld", "numpy"]),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    console.print(f"written: {options.out}")


if __name__ == "__main__":
    main()
