"""``pivotopd games``: import, list, generate, check and play ALFWorld games."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from flows.games_options import GamesPath, Limit, Splits, Wording
from flows.play_cli import play

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pivotopd.environments.alfworld.engine import WordingStyle
    from pivotopd.environments.alfworld.games import Game

CHECK_FAILED = 4
"""Exit code of a check that found something: the environment's, see :mod:`pivotopd.errors`."""

SHOWN = 5
"""Failures that are printed in full."""

games_app = typer.Typer(help="Import, list, generate, check and play ALFWorld games.", no_args_is_help=True)
games_app.command()(play)


@games_app.command("import")
def import_games(
    source: Annotated[str, typer.Argument(help="Folder of the ALFWorld release, or Parquet of games.")],
    target: Annotated[str, typer.Argument(help="Parquet file to write.")],
    split: Splits = None,
    limit: Limit = None,
) -> None:
    """Copy games into one Parquet table, which loads in seconds. Nothing of a game file is executed."""
    from pivotopd.environments.alfworld.games import write_games

    games = _games(source, split, limit)
    write_games(games, target)
    typer.echo(f"{len(games)} games written to {target}")


@games_app.command("list")
def list_games(
    path: GamesPath = None,
    split: Splits = None,
    limit: Limit = None,
    ids: Annotated[bool, typer.Option("--ids", help="One line a game instead of counts.")] = False,
) -> None:
    """Count games by split and task type."""
    games = _games(path, split, limit)
    if ids:
        for game in games:
            typer.echo(f"{game.id}  {game.task_sentence}")
        return
    for line in _counts(games):
        typer.echo(line)


@games_app.command()
def generate(
    target: Annotated[str, typer.Argument(help="Parquet file to write.")],
    count: Annotated[int, typer.Option(min=1, help="How many games.")] = 48,
    seed: Annotated[int, typer.Option(help="The same seed makes the same games.")] = 0,
    split: Annotated[
        str, typer.Option(help="Name of the split: train, or any name for held-out games.")
    ] = "train",
    task_type: Annotated[
        list[str] | None, typer.Option("--type", help="Task type; may be given again; default all six.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Small kitchens, as the tiny student plays; default all features.")
    ] = False,
) -> None:
    """Make new games from a seed. No held-out game is ever a training game, whatever the seeds."""
    from pivotopd.environments.alfworld.games import write_games
    from pivotopd.environments.alfworld.generator import PLAIN, PLAIN_TASK_TYPES, generate_games
    from pivotopd.environments.alfworld.goals import TASK_TYPES

    types = task_type or (PLAIN_TASK_TYPES if plain else TASK_TYPES)
    games = generate_games(seed, split, count, types, PLAIN if plain else None)
    write_games(games, target)
    typer.echo(f"{len(games)} games written to {target}")


@games_app.command()
def check(
    path: GamesPath = None,
    split: Splits = None,
    limit: Limit = None,
    wording: Wording = "move",
    reference: Annotated[
        bool, typer.Option("--reference", help="Also play in the stock engine and compare every answer.")
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes of the stock engine; some 250 MB each.")
    ] = 1,
    traces: Annotated[
        str | None, typer.Option(metavar="FILE", help="Compare with recorded play of the games instead.")
    ] = None,
) -> None:
    """Play games to the end with the oracle; compare with the stock engine or with recorded play.

    The last line is the verdict. Exit code 0 only if every game was won and nothing differed, else 4. With
    --reference, --limit takes games from all task types in turn.
    """
    if traces is not None:
        _check_traces(path, traces, wording)
        return
    from pivotopd.environments.alfworld.check import check_games

    games = _spread_games(path, split, limit, wording) if reference else _games(path, split, limit)
    report = check_games(games, wording=wording)
    for failure in report.failures[:SHOWN]:
        typer.echo(f"{failure.game_id}: {failure.reason}")
    bad = report.total - report.won
    typer.echo(f"won: {report.won} of {report.total}")
    if reference:
        bad += _check_reference(games, processes)
    if bad:
        raise typer.Exit(CHECK_FAILED)


def _games(path: str | None, split: list[str] | None, limit: int | None = None) -> list[Game]:
    from pivotopd.environments.alfworld.games import load_games

    return load_games(path, split or None, limit)


def _spread_games(
    path: str | None, split: list[str] | None, limit: int | None, wording: WordingStyle
) -> list[Game]:
    """Return games of all task types in turn; refuse early what the stock engine cannot do."""
    from pivotopd.environments.alfworld.contract import spread
    from pivotopd.environments.alfworld.stock import packages
    from pivotopd.errors import ConfigError

    if wording != "move":
        raise ConfigError("the stock engine speaks the wording of ALFWorld 0.4 only", mend="--wording move")
    packages()
    return spread(_games(path, split), limit)


def _check_traces(path: str | None, traces: str, wording: WordingStyle) -> None:
    from pivotopd.environments.alfworld.traces import check_traces

    report = check_traces(traces, path, wording)
    for difference in report.first:
        typer.echo(
            f"{difference.game_id}, turn {difference.turn}, {difference.column}:\n"
            f"  recorded: {difference.recorded}\n  played:   {difference.played}"
        )
    typer.echo(f"turns: {report.turns}, mismatches: {report.mismatches}")
    if report.mismatches:
        raise typer.Exit(CHECK_FAILED)


def _check_reference(games: Sequence[Game], processes: int) -> int:
    from pivotopd.environments.alfworld.contract import check_against_stock

    report = check_against_stock(games, processes=processes)
    for difference in report.mismatches[:SHOWN]:
        typer.echo(
            f"{difference.game_id}, {difference.play} play, turn {difference.turn}, {difference.field}:\n"
            f"  native: {difference.native}\n  stock:  {difference.stock}\n"
            f"  actions: {list(difference.actions)}"
        )
    typer.echo(f"turns: {report.turns}, mismatches: {len(report.mismatches)}")
    return len(report.mismatches)


def _counts(games: Iterable[Game]) -> list[str]:
    """Return lines: the number of games of each split and type, and in all."""
    counted = Counter((game.split, game.task_type) for game in games)
    lines = [f"{split:14s} {kind:32s} {count:6d}" for (split, kind), count in sorted(counted.items())]
    return [*lines, f"games: {counted.total()}"]
