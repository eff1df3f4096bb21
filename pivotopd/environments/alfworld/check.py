"""Check that games can be played to the end: the oracle plays each of them in the native engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from pivotopd.environments.alfworld.engine import WordingStyle, engine_of
from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.errors import EnvironmentFault


@dataclass(frozen=True)
class CheckFailure:
    """A game that was not won, and why."""

    game_id: str
    reason: str


@dataclass(frozen=True)
class CheckReport:
    """What the check found.

    Attributes:
        total: Games checked.
        won: Games that the oracle's path won, in exactly as many turns as the oracle said.
        failures: The others.
    """

    total: int
    won: int
    failures: tuple[CheckFailure, ...]


def check_games(
    games: Iterable[Game], limit: int | None = None, wording: WordingStyle = "move"
) -> CheckReport:
    """Load every game, play the oracle's path in the native engine, and count the wins.

    Args:
        games: The games.
        limit: How many to check at most, the first ones; None for all.
        wording: Style of the commands.
    """
    env = NativeEnv(wording)
    failures: list[CheckFailure] = []
    total = 0
    for game in islice(games, limit):
        total += 1
        try:
            reason = _play(env, game, wording)
        except EnvironmentFault as error:
            reason = str(error)
        if reason is not None:
            failures.append(CheckFailure(game.id, reason))
    return CheckReport(total, total - len(failures), tuple(failures))


def _play(env: NativeEnv, game: Game, wording: WordingStyle) -> str | None:
    """Return why a game was not won, or None."""
    answer = env.reset(task_of(game))
    world = engine_of(game.pddl_problem, game.task_sentence, game.id, wording).world
    if world.goal.task_type != game.task_type:
        return f"it is listed as {game.task_type}, but its goal is {world.goal.task_type}"
    if answer.won:
        return "its goal holds at the start"
    oracle = Oracle(world)
    turns = oracle.distance(world.start)
    if turns is None:
        return "its goal cannot be reached"
    return _follow(env, oracle, turns)


def _follow(env: NativeEnv, oracle: Oracle, turns: int) -> str | None:
    """Play an optimal path; return why it did not win at its last turn, or None."""
    done = False
    for turn in range(turns):
        actions = oracle.optimal_actions(env.snapshot().state, env.wording)
        if not actions:
            return f"the oracle knows no action at turn {turn}"
        answer = env.step(actions[0])
        if not answer.valid:
            return f"the engine does not admit the oracle's action {actions[0]!r} at turn {turn}"
        done = answer.done
        if done and turn < turns - 1:
            return f"it was won at turn {turn + 1}, the oracle said {turns}"
    return None if done else f"it was not won by the {turns} turns of the oracle's path"
