"""First pivotal turns of imperfect play on official games: the oracle against the stock planner.

Few games are compared by default, since the stock engine takes about a second a game; with
``PIVOTOPD_REFERENCE_GAMES=300`` as many as anyone likes.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import pytest

from pivotopd.diagnosis.pivots import PIVOTAL, ReadTurn, read_turns
from pivotopd.environments.alfworld.contract import spread
from pivotopd.environments.alfworld.engine import engine_of
from pivotopd.environments.alfworld.environment import AlfworldOracle
from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.distances import classify_distances
from pivotopd.environments.replay import Passed
from pivotopd.seeds import rng_of

GAMES = int(os.environ.get("PIVOTOPD_REFERENCE_GAMES", "24"))
NEAR = 4
"""Turns from the goal at which play turns bad: the planner's blind search answers soon there."""
TURNS = 30
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Play:
    """Imperfect play up to its first pivotal turn."""

    game: Game
    actions: tuple[str, ...]
    pivot: ReadTurn
    before: ReadTurn | None


def imperfect(game: Game) -> Play | None:
    """Follow the oracle with idle turns until the goal is near, then do anything; stop at the first pivot."""
    world = engine_of(game.pddl_problem, game.task_sentence, game.id, "move").world
    env, oracle, rng = NativeEnv(), AlfworldOracle(world, game.id, "move"), rng_of("imperfect play", game.id)
    result = env.reset(task_of(game))
    actions: list[str] = []
    states = [Passed(env.dump(), env.state_hash())]
    while len(actions) < TURNS and not result.done:
        left = oracle.distance(env.dump())
        assert left is not None
        idle = rng.random() < 0.2
        if idle or left <= NEAR:
            admissible = result.admissible or ()
            actions.append("look" if idle else admissible[int(rng.integers(len(admissible)))])
        else:
            actions.append(oracle.best_actions(env.dump(), None)[0])
        result = env.step(actions[-1])
        states.append(Passed(env.dump(), env.state_hash()))
        turns = list(read_turns(oracle, states[-3:]))
        if turns[-1].change in PIVOTAL:
            return Play(game, tuple(actions), turns[-1], turns[0] if len(turns) > 1 else None)
    return None


def planner(jobs: Connection, answers: Connection) -> None:
    """Answer with the stock planner's lengths, -1 for no plan, around the last two actions of each play."""
    import fast_downward

    from pivotopd.environments.alfworld.memo import memoised
    from pivotopd.environments.alfworld.stock import StockEnv

    translate, env = fast_downward.pddl2sas, StockEnv(memoise=False)
    with memoised():  # its texts, which no plan depends on
        fast_downward.pddl2sas = translate  # but the planner's own translation
        while True:
            game, actions = jobs.recv()
            env.reset(task_of(game))
            answers.send("loaded")
            for place, action in enumerate(actions):
                if place >= len(actions) - 2:
                    answers.send(len(env.plan()) or -1)
                last = env.step(action)
            answers.send(0 if last.won else len(env.plan()) or -1)


def planned(plays: Sequence[Play]) -> Iterator[tuple[Play, list[int] | None]]:
    """Yield the planner's lengths around the last two turns of each play; None where it takes too long."""
    spawn = multiprocessing.get_context("spawn")
    process = None
    for play in plays:
        if process is None:
            (theirs, jobs), (answers, ours) = spawn.Pipe(duplex=False), spawn.Pipe(duplex=False)
            process = spawn.Process(target=planner, args=(theirs, ours), daemon=True)
            process.start()
        jobs.send((play.game, play.actions))
        assert answers.poll(180), f"the stock engine does not load {play.game.id}"
        answers.recv()
        found: list[int] = []
        while len(found) < min(3, len(play.actions) + 1) and answers.poll(PATIENCE_S):
            found.append(answers.recv())
        if len(found) < min(3, len(play.actions) + 1):
            process.kill()
            process.join()
            process = None
        yield play, found if process is not None else None
    if process is not None:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.usefixtures("stock_engine")
def test_first_pivots_agree_with_the_stock_planner(official_games: list[Game]) -> None:
    plays: list[Play] = []
    for game in spread(official_games, 2 * GAMES):
        found = imperfect(game)
        if found is not None and len(plays) < GAMES:
            plays.append(found)
    assert len(plays) == GAMES, "most imperfect play holds a pivotal turn"
    answered = 0
    for play, lengths in planned(plays):
        if lengths is None:
            continue
        answered += 1
        distances = [None if length == -1 else length for length in lengths]
        assert distances[-2:] == [play.pivot.before, play.pivot.after], (play.game.id, play.actions)
        assert classify_distances(distances[-2], distances[-1]) == play.pivot.change in PIVOTAL
        if play.before is not None and len(distances) == 3:
            assert classify_distances(distances[0], distances[1]) == play.before.change not in PIVOTAL
    assert answered >= 0.7 * GAMES, f"the planner answered for {answered} of {GAMES} games"
