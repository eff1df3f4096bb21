"""Reach a turn again: restore against a replay in the stock engine, and against a replay in our own.

``restore`` takes a value of this process; ``load`` reads the bytes of a rollout's row, as recovery does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.environment import Play, check_equal, plays_of
from benchmarks.ratios import Block, Cost, Ratio, abba, growth, speedup, worse
from benchmarks.ratios import measure as timed
from benchmarks.result import Count, Measure
from pivotopd.environments.alfworld.contract import spread
from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.generator import generate_games
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.stock import StockEnv
from pivotopd.seeds import rng_of

TURN = 12
TURNS = (4, 8, 16, 32)
REPEATS = 200
GATE, AIM, OWN_GATE = 5_000.0, 50_000.0, 5.0


@dataclass(frozen=True, slots=True)
class Reached:
    """What reaching the turn took, by way."""

    restore: Cost
    load: Cost
    own: Cost

    def __add__(self, other: Reached) -> Reached:
        return Reached(self.restore + other.restore, self.load + other.load, self.own + other.own)


def measure(*, quick: bool = False) -> list[Measure]:
    """Return the ratios at turn 12, and how the restore grows with the turn."""
    games = list(generate_games(0, "benchmark", 60))
    plays = plays_of(spread(games, 1 if quick else 3))
    engines = {game.id: StockEnv(memoise=False) for game, _ in plays}
    counts: dict[str, Count] = {
        "turn": TURN,
        "games": len(plays),
        "equal_answers": check_equal(plays, engines) + _check_states(plays),
        "stock_resets_per_reach": 1,
        "stock_steps_per_reach": TURN,
        "restored_resets_per_reach": 0,
        "restored_steps_per_reach": 0,
    }
    blocks = abba(
        partial(_native, plays, 20 if quick else REPEATS),
        partial(_stock, plays, engines),
        2 if quick else 7,
        warmup=0 if quick else 1,
    )
    found = [
        _ratio("restore/stock", "restore against stock replay", blocks, "restore", GATE, AIM, counts),
        _ratio("restore/stock/bytes", "the same from stored bytes", blocks, "load", GATE, AIM, counts),
    ]
    own = [Block[Cost](block.a.restore, block.a.own) for block in blocks]
    found.append(_measure("restore/own", "restore against our own replay", own, OWN_GATE, None, counts))
    own = [Block[Cost](block.a.load, block.a.own) for block in blocks]
    found.append(_measure("restore/own/bytes", "the same from stored bytes", own, OWN_GATE, None, counts))
    return [*found, *_flat(games, quick)]


def _check_states(plays: Sequence[Play]) -> int:
    """Compare restored with replayed states; return how many were equal."""
    for game, actions in plays:
        env, other = NativeEnv(), NativeEnv()
        played = _play_to(env, game, actions)
        mark, stored = env.snapshot(), _bytes(env)
        env.step(actions[0])
        if not (env.restore(mark) == played == other.load(task_of(game), stored)):
            raise SystemExit(f"{game.id}: a restored state answers differently, nothing was measured")
        if env.state_hash() != other.state_hash():
            raise SystemExit(f"{game.id}: a restored state differs, nothing was measured")
    return 2 * len(plays)


def _play_to(env: NativeEnv, game: Game, actions: Sequence[str]) -> object:
    result = env.reset(task_of(game))
    for action in actions:
        result = env.step(action)
    return result


def _bytes(env: NativeEnv) -> bytes:
    state = env.dump()
    if state is None:
        raise SystemExit("the native engine gives no state")
    return state


def _restore(env: NativeEnv, mark: object, times: int) -> int:
    for _ in range(times):
        env.restore(mark)  # type: ignore[arg-type]  # the engine's own value, given back to it
    return times


def _load(env: NativeEnv, game: Game, stored: bytes, times: int) -> int:
    task = task_of(game)
    for _ in range(times):
        env.load(task, stored)
    return times


def _replay(env: NativeEnv, game: Game, actions: Sequence[str], times: int) -> int:
    for _ in range(times):
        _play_to(env, game, actions)
    return times


def _native(plays: Sequence[Play], repeats: int) -> Reached:
    nothing = Cost(0, 0.0, 0.0)
    total = Reached(nothing, nothing, nothing)
    for game, actions in plays:
        env = NativeEnv()
        own = timed(partial(_replay, env, game, actions, max(1, repeats // 10)))
        mark, stored = env.snapshot(), _bytes(env)
        restored = timed(partial(_restore, env, mark, repeats))
        total += Reached(restored, timed(partial(_load, env, game, stored, repeats)), own)
    return total


def _stock(plays: Sequence[Play], engines: dict[str, StockEnv]) -> Reached:
    total = Cost(0, 0.0, 0.0)
    for game, actions in plays:
        total += timed(partial(_stock_replay, engines[game.id], game, actions))
    return Reached(total, total, total)


def _stock_replay(env: StockEnv, game: Game, actions: Sequence[str]) -> int:
    env.reset(task_of(game))
    for action in actions:
        env.step(action)
    return 1


def _ratio(
    name: str,
    label: str,
    blocks: Sequence[Block[Reached]],
    way: str,
    gate: float,
    aim: float | None,
    counts: dict[str, Count],
) -> Measure:
    own = [Block[Cost](getattr(block.a, way), getattr(block.b, way)) for block in blocks]
    return _measure(name, label, own, gate, aim, counts)


def _measure(
    name: str,
    label: str,
    blocks: Sequence[Block[Cost]],
    gate: float,
    aim: float | None,
    counts: dict[str, Count],
) -> Measure:
    wall, cpu = speedup(blocks), speedup(blocks, clock="cpu_s")
    judged: Ratio = worse(wall, cpu)
    fast, slow = blocks[0].a, blocks[0].b
    return Measure(
        name=name,
        label=f"turn {TURN}: {label}",
        value=judged.median,
        low=judged.low,
        high=judged.high,
        gate=gate,
        aim=aim,
        clock="cpu and wall",
        counts=counts
        | {
            "restores_timed": fast.units,
            "replays_timed": slow.units,
            "microseconds_a_restore": round(1e6 * fast.cpu_s / fast.units, 2),
            "milliseconds_a_replay": round(1e3 * slow.cpu_s / slow.units, 3),
            "wall_ratio": round(wall.median, 1),
            "blocks": len(blocks),
        },
    )


def _flat(games: Sequence[Game], quick: bool) -> list[Measure]:
    """Return how the cost of a restore grows with the turn that it reaches."""
    game, actions = _long_play(games, max(TURNS))
    ways: dict[str, list[float]] = {"value": [], "bytes": []}
    repeats = 50 if quick else 1_000
    for turn in TURNS:
        env = NativeEnv()
        _play_to(env, game, actions[:turn])
        mark, stored = env.snapshot(), _bytes(env)
        for name, work in (
            ("value", partial(_restore, env, mark, repeats)),
            ("bytes", partial(_load, env, game, stored, repeats)),
        ):
            ways[name].append(min(timed(work).cpu_s for _ in range(5)) / repeats)
    return [
        Measure(
            name=f"restore/growth/{name}",
            label=f"growth of a restore with the turn, {name}",
            value=(exponent := growth(TURNS, costs)),
            low=exponent,
            high=exponent,
            unit="",
            better="less",
            counts={
                f"microseconds_at_{turn}": round(1e6 * s, 2) for turn, s in zip(TURNS, costs, strict=True)
            },
            note="exponent; 0 is flat",
        )
        for name, costs in ways.items()
    ]


def _long_play(games: Sequence[Game], turns: int) -> Play:
    """Return a game and admissible actions that do not end it."""
    for game in games:
        env, actions = NativeEnv(), list[str]()
        rng = rng_of("long play", game.id)
        answer = env.reset(task_of(game))
        while len(actions) < turns and not answer.done:
            choices = answer.admissible or ()
            actions.append(choices[int(rng.integers(len(choices)))])
            answer = env.step(actions[-1])
        if not answer.done:
            return game, actions
    raise SystemExit(f"no game goes on for {turns} turns")
