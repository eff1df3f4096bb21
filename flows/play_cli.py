"""``pivotopd games play``: a person plays a game in the terminal, with the oracle at hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from flows.games_options import GamesPath, Splits, Wording

if TYPE_CHECKING:
    from pivotopd.environments.alfworld.engine import WordingStyle
    from pivotopd.environments.alfworld.games import Game

HELP = (
    "type an admissible action; or: actions (list them), oracle (best actions), "
    "undo (take the last turn back), quit"
)


def play(
    path: GamesPath = None,
    game: Annotated[
        str | None, typer.Option(help="Id, or a part that names one game; default the first.")
    ] = None,
    split: Splits = None,
    generate: Annotated[int | None, typer.Option(metavar="SEED", help="Play a new game instead.")] = None,
    wording: Wording = "move",
) -> None:
    """Play a game; reads actions from the terminal or from a pipe, one a line."""
    chosen = _new_game(generate) if generate is not None else _one_game(path, game, split)
    typer.echo(f"{chosen.id} ({chosen.task_type})\n{HELP}\n")
    _play(chosen, wording)


def _new_game(seed: int) -> Game:
    from pivotopd.environments.alfworld.generator import generate_games
    from pivotopd.environments.alfworld.goals import TASK_TYPES

    return generate_games(seed, "play", 1, (TASK_TYPES[seed % len(TASK_TYPES)],))[0]


def _one_game(path: str | None, wanted: str | None, split: list[str] | None) -> Game:
    from pivotopd.environments.alfworld.games import load_games
    from pivotopd.errors import GameError

    if wanted is None:
        return load_games(path, split or None, limit=1)[0]
    games = load_games(path, split or None)
    found = [game for game in games if game.id == wanted] or [game for game in games if wanted in game.id]
    if len(found) != 1:
        near = ", ".join(game.id for game in found[:3])
        raise GameError(
            f"{len(found)} games match {wanted!r}{': ' + near if near else ''}",
            where=str(path),
            mend="see `pivotopd games list PATH --ids`",
        )
    return found[0]


def _play(game: Game, wording: WordingStyle) -> None:
    from pivotopd.environments.alfworld.engine import engine_of
    from pivotopd.environments.alfworld.games import task_of
    from pivotopd.environments.alfworld.native import NativeEnv
    from pivotopd.environments.alfworld.oracle import Oracle

    env = NativeEnv(wording)
    answer = env.reset(task_of(game), seed=0)
    world = engine_of(game.pddl_problem, game.task_sentence, game.id, wording).world
    oracle = Oracle(world)
    typer.echo(answer.observation)
    before = [env.snapshot()]
    for line in _lines():
        if line in {"quit", "exit"}:
            break
        if line in {"?", "actions"}:
            typer.echo("  " + "\n  ".join(answer.admissible or ()))
        elif line == "oracle":
            state = before[-1].state
            typer.echo(_hint(oracle.distance(state), oracle.optimal_actions(state, wording)))
        elif line == "undo":
            if len(before) > 1:
                before.pop()
            answer = env.restore(before[-1])
            typer.echo(answer.observation)
        else:
            answer = env.step(line)
            before.append(env.snapshot())
            typer.echo(answer.observation)
            if answer.done:
                typer.echo(f"\nwon in {len(before) - 1} turns")
                return
    typer.echo(f"\nnot won, {len(before) - 1} turns")


def _hint(distance: int | None, actions: tuple[str, ...]) -> str:
    if distance is None:
        return "  the task cannot be completed any more; undo"
    return f"  {distance} turns from the goal; best: " + ", ".join(actions)


def _lines() -> Iterator[str]:
    """Yield what is typed, stripped; the prompt sign only where a person sees it."""
    while True:
        if sys.stdin.isatty():
            typer.echo("> ", nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()
