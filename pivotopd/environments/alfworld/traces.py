"""Recorded play of the stock engine, replayed in ours and compared byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pivotopd.environments.alfworld.engine import Engine, WordingStyle, engine_of
from pivotopd.environments.alfworld.games import Game, load_games
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.problem import State, goal_holds
from pivotopd.errors import GameError

COLUMNS: Final = ("game_id", "turn", "action", "observation", "admissible", "won", "oracle_distance")
SHOWN: Final = 5
"""Differences that a report keeps."""


@dataclass(frozen=True)
class Difference:
    """One answer that is not the recorded one.

    Attributes:
        game_id: The game.
        turn: The turn, 0 for the reset.
        column: The column that differs.
        recorded: What the trace says.
        played: What our engine or oracle says.
    """

    game_id: str
    turn: int
    column: str
    recorded: str
    played: str


@dataclass(frozen=True)
class TraceReport:
    """What a replay found.

    Attributes:
        games: Games replayed.
        turns: Rows compared, resets included.
        mismatches: Rows with at least one difference.
        first: The first differences, at most :data:`SHOWN`.
    """

    games: int
    turns: int
    mismatches: int
    first: tuple[Difference, ...]


def check_traces(
    traces_path: str | Path, games_path: str | Path | None = None, wording: WordingStyle = "move"
) -> TraceReport:
    """Replay recorded play: observation, admissible list, won and oracle distance of every row.

    A trace may go on after its game is won, as the stock engine does.

    Args:
        traces_path: Parquet with the columns :data:`COLUMNS`, one row a turn; ``action`` is null at the
            reset, ``oracle_distance`` null where the goal cannot be reached any more.
        games_path: Where the games are, as for :func:`~.games.load_games`.
        wording: Style in which the play was recorded.

    Raises:
        GameError: A table is damaged, a game of the traces is missing, or a trace is not whole.
        SearchLimit: The oracle's search grew too large.
    """
    rows = _read(Path(traces_path))
    games = {g.id: g for g in load_games(games_path, ids={row["game_id"] for row in rows})}
    turns = mismatches = 0
    first: list[Difference] = []
    played = 0
    for game_id, group in groupby(rows, key=lambda row: str(row["game_id"])):
        if game_id not in games:
            raise GameError(
                f"The traces play {game_id}, which is not among the games.",
                where=f"{traces_path}, {games_path}",
                mend="give the games that the traces were recorded on",
            )
        played += 1
        for differences in _replay(games[game_id], list(group), wording):
            turns += 1
            mismatches += bool(differences)
            first += differences[: SHOWN - len(first)]
    return TraceReport(played, turns, mismatches, tuple(first))


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise GameError(
            f"The traces cannot be read: {error}", where=str(path), mend="check the path"
        ) from error
    lacking = set(COLUMNS) - set(table.column_names)
    if lacking or table.num_rows == 0:
        raise GameError(
            f"The traces lack {', '.join(sorted(lacking)) or 'rows'}.",
            where=str(path),
            mend=f"give a table of the columns {', '.join(COLUMNS)}",
        )
    rows: list[dict[str, Any]] = table.select(list(COLUMNS)).to_pylist()
    return sorted(rows, key=lambda row: (row["game_id"], row["turn"]))


def _replay(game: Game, rows: list[dict[str, Any]], wording: WordingStyle) -> Iterator[list[Difference]]:
    """Yield the differences of each row of one game."""
    if [row["turn"] for row in rows] != list(range(len(rows))) or rows[0]["action"] is not None:
        raise GameError(
            "The trace is not one unbroken row of turns from its reset on.",
            where=game.id,
            mend="record one episode a game, the reset as turn 0 with a null action",
        )
    engine = engine_of(game.pddl_problem, game.task_sentence, game.id, wording)
    oracle = Oracle(engine.world)
    state, text = engine.world.start, engine.reset_text()
    for row in rows:
        if row["turn"]:
            state, text, _ = engine.apply(state, row["action"])
        yield _compare(engine, oracle, state, text, row)


def _compare(
    engine: Engine, oracle: Oracle, state: State, text: str, row: dict[str, Any]
) -> list[Difference]:
    played = {
        "observation": text,
        "admissible": list(engine.admissible(state)),
        "won": goal_holds(engine.world, state),
        "oracle_distance": oracle.distance(state),
    }
    return [
        Difference(row["game_id"], row["turn"], column, repr(row[column]), repr(value))
        for column, value in played.items()
        if row[column] != value
    ]
