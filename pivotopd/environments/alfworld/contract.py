"""The contract between the native and the stock engine: one game, one list of actions, the same answers.

Each game is played twice in the native engine, which chooses the actions: once at random, with commands that
are misspelt or impossible among them, and once along the oracle's shortest way with detours. The stock engine
then plays the same actions, and every answer of every turn is compared.
"""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import Final, Literal

import numpy as np

from pivotopd.environments.alfworld.engine import engine_of
from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.stock import packages, play_stock
from pivotopd.environments.base import StepResult
from pivotopd.errors import EnvironmentFault
from pivotopd.seeds import rng_of

Play = Literal["random", "guided"]
Player = Callable[[Game, Sequence[str]], list[StepResult]]
"""Plays actions in the reference engine; returns the answers to the reset and to each action."""

PLAYS: Final[tuple[Play, ...]] = ("random", "guided")
_FIELDS: Final = ("observation", "admissible", "won", "done", "score", "reward", "valid")
_BATCH: Final = 40
"""Games a worker plays before it is replaced: the stock engine does not give all memory back."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first turn of a play in which the engines differ.

    Attributes:
        game_id: The game.
        play: How the actions were chosen.
        turn: Index of the answer; 0 is the reset.
        field: What differs: a field of ``StepResult``, or ``length``.
        native: What the native engine says.
        stock: What the stock engine says.
        actions: All actions up to that turn, to play it again.
    """

    game_id: str
    play: Play
    turn: int
    field: str
    native: str
    stock: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlayReport:
    """One play of one game.

    Attributes:
        game_id: The game.
        task_type: Its type.
        play: How the actions were chosen.
        turns: Answers compared, the reset included.
        invalid: Actions among them that the engine did not recognise.
        won: The play ended with a win.
        difference: The first difference, or None.
    """

    game_id: str
    task_type: str
    play: Play
    turns: int
    invalid: int
    won: bool
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class ContractReport:
    """What a comparison of the engines found."""

    plays: tuple[PlayReport, ...]

    @property
    def games(self) -> int:
        """Games played."""
        return len({play.game_id for play in self.plays})

    @property
    def turns(self) -> int:
        """Answers compared, resets included."""
        return sum(play.turns for play in self.plays)

    @property
    def wins(self) -> int:
        """Plays that ended with a win."""
        return sum(play.won for play in self.plays)

    @property
    def mismatches(self) -> tuple[Difference, ...]:
        """The first difference of each play that has one."""
        return tuple(play.difference for play in self.plays if play.difference)

    @property
    def task_types(self) -> dict[str, int]:
        """Games of each task type, sorted by type."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for play in self.plays:
            found[play.task_type].add(play.game_id)
        return {kind: len(found[kind]) for kind in sorted(found)}


def spread(games: Iterable[Game], limit: int | None) -> list[Game]:
    """Take games in turn from each task type, by sorted ids.

    Args:
        games: Where to take them from.
        limit: How many; None for all.
    """
    by_type: defaultdict[str, list[Game]] = defaultdict(list)
    for game in sorted(games, key=lambda game: game.id):
        by_type[game.task_type].append(game)
    rounds = zip_longest(*(by_type[kind] for kind in sorted(by_type)))
    return [game for game in chain.from_iterable(rounds) if game is not None][:limit]


def check_against_stock(
    games: Sequence[Game], turns_per_game: int = 18, seed: int = 0, processes: int = 1
) -> ContractReport:
    """Play games in both engines and compare every answer.

    Args:
        games: What to play; see :func:`spread` for a fair part of many.
        turns_per_game: Actions of each of a game's two plays; a win ends a play earlier.
        seed: Decides the actions, with each game's id.
        processes: Worker processes. Memory: some 250 MB each.

    Returns:
        The report, in the order of the games.

    Raises:
        ConfigError: The extra ``pivotopd[alfworld]`` is not installed.
        GameError: A game cannot be loaded by one of the engines.
        EnvironmentFault: A worker process died.
    """
    packages()
    spawn = multiprocessing.get_context("spawn")
    plays: list[PlayReport] = []
    for start in range(0, len(games), _BATCH * processes):
        batch = games[start : start + _BATCH * processes]
        try:
            with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
                found = pool.map(partial(_check_game, turns=turns_per_game, seed=seed), batch)
                plays += chain.from_iterable(found)
        except BrokenProcessPool as error:
            raise EnvironmentFault(
                "A worker process of the stock engine died.",
                where=f"games {batch[0].id} to {batch[-1].id}",
                mend="free memory, or use fewer processes",
            ) from error
    return ContractReport(tuple(plays))


def _check_game(game: Game, turns: int, seed: int) -> list[PlayReport]:
    return [check_play(game, play, turns, seed) for play in PLAYS]


def check_play(game: Game, play: Play, turns: int, seed: int, player: Player = play_stock) -> PlayReport:
    """Play a game in both engines, in this process.

    Args:
        game: The game.
        play: How to choose the actions.
        turns: Actions at most.
        seed: Decides the actions, with the game's id and ``play``.
        player: The reference engine.
    """
    actions, native = play_native(game, play, turns, seed)
    difference = first_difference(game, play, actions, native, player(game, actions))
    return PlayReport(
        game_id=game.id,
        task_type=game.task_type,
        play=play,
        turns=len(native),
        invalid=sum(not answer.valid for answer in native),
        won=native[-1].done,
        difference=difference,
    )


def first_difference(
    game: Game, play: Play, actions: Sequence[str], native: Sequence[StepResult], stock: Sequence[StepResult]
) -> Difference | None:
    """Compare two lists of answers turn by turn; return the first difference."""
    for turn, (ours, theirs) in enumerate(zip(native, stock, strict=False)):
        for field in _FIELDS:
            mine, reference = getattr(ours, field), getattr(theirs, field)
            if mine != reference:
                if field == "admissible":
                    mine, reference = _apart(mine, reference)
                said = (str(mine), str(reference))
                return Difference(game.id, play, turn, field, *said, actions=tuple(actions[:turn]))
    if len(native) != len(stock):
        said = (str(len(native)), str(len(stock)))
        turn = min(len(native), len(stock))
        return Difference(game.id, play, turn, "length", *said, actions=tuple(actions[:turn]))
    return None


def _apart(ours: tuple[str, ...] | None, theirs: tuple[str, ...] | None) -> tuple[str, str]:
    """Name what only one of two lists of commands holds; both lists where only the order differs."""
    only = sorted(set(ours or ()) - set(theirs or ())), sorted(set(theirs or ()) - set(ours or ()))
    if only == ([], []):
        return str(ours), str(theirs)
    return f"only here: {only[0]}", f"only here: {only[1]}"


# ---------------------------------------------------------------------- choosing actions


def play_native(game: Game, play: Play, turns: int, seed: int) -> tuple[list[str], list[StepResult]]:
    """Choose and play actions in the native engine.

    Returns:
        The actions, and the answers to the reset and to each of them.
    """
    rng = rng_of(seed, "contract", game.id, play)
    env = NativeEnv()
    answers = [env.reset(task_of(game))]
    oracle = Oracle(engine_of(game.pddl_problem, game.task_sentence, game.id, "move").world)
    actions: list[str] = []
    while len(actions) < turns and not answers[-1].done:
        ahead = play == "guided" and rng.random() < 0.65
        best = oracle.optimal_actions(env.snapshot().state) if ahead else ()
        seen = [command for answer in answers for command in answer.admissible or ()]
        action = _pick(rng, best) if best else _wander(rng, answers[-1].admissible or (), seen)
        actions.append(action)
        answers.append(env.step(action))
    return actions, answers


def _pick(rng: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(rng.integers(len(choices)))]


def _wander(rng: np.random.Generator, admissible: Sequence[str], seen: Sequence[str]) -> str:
    """Draw a command: of a drawn verb, so that rare verbs are played, or one that the engine may refuse."""
    if rng.random() < 0.25:
        return _pick(rng, list(_odd(_pick(rng, admissible), _pick(rng, seen))))
    by_verb: defaultdict[str, list[str]] = defaultdict(list)
    for command in admissible:
        by_verb[command.partition(" ")[0]].append(command)
    return _pick(rng, by_verb[_pick(rng, sorted(by_verb))])


def _odd(command: str, earlier: str) -> Iterator[str]:
    """Yield a command in forms that are padded, misspelt or out of place."""
    yield f"  {command} "
    yield f"{command}\n"
    yield f"\t{command}"
    yield command.upper()
    yield command.capitalize()
    yield command.replace(" ", "  ")
    yield command.rstrip("0123456789 ")
    yield f"{command} 1"
    yield f"{command}."
    yield earlier  # of an earlier state: often not admissible now
    yield earlier.replace("take", "move").replace(" from ", " to ")
    yield ""
    yield "kick the ball"
    yield "go to nowhere 1"
