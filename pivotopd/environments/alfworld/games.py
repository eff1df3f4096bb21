"""Games: as values, from the release's folders, from Parquet tables, and back into a table.

A release's game file holds a grammar that the stock engine evaluates as code. Here it is searched for the
task sentence as plain text, and nothing of it is ever evaluated.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pivotopd.environments.alfworld.goals import TASK_TYPES
from pivotopd.environments.base import Task
from pivotopd.errors import GameError, StorageError, first_line

GAME_FILE: Final = "game.tw-pddl"
DATA_VARIABLE: Final = "ALFWORLD_DATA"
SCHEMA: Final = pa.schema(
    [
        ("game_id", pa.string()),
        ("split", pa.string()),
        ("task_type", pa.string()),
        ("task_sentence", pa.string()),
        ("pddl_problem", pa.string()),
        ("solvable", pa.bool_()),
    ]
)
_SENTENCE = re.compile(r'Your task is to: ([^"]*)"')
_MEND_TARGET: Final = "give the path of a Parquet file in a folder that can be written and has free space"
_MEND_PATH: Final = (
    f"give a Parquet of games, a folder of them, or a release folder (json_2.1.x), or set ${DATA_VARIABLE}"
)


@dataclass(frozen=True)
class Game:
    """One game.

    Attributes:
        id: ``split/task/trial`` for the official games.
        split: Name of its split.
        task_type: One of ALFWorld's six.
        pddl_problem: The problem.
        task_sentence: The task in words, with its full stop. It was drawn at random when the game was made.
        source: Where it was read from, or what made it.
    """

    id: str
    split: str
    task_type: str
    pddl_problem: str = field(repr=False)
    task_sentence: str
    source: str = field(compare=False)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 (hex) of the problem and the sentence, which decide all of play."""
        digest = hashlib.sha256()
        for text in (self.pddl_problem, self.task_sentence):
            part = text.encode("utf-8", "surrogatepass")
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()


def task_of(game: Game) -> Task:
    """Return a game as a task."""
    return Task(game.id, "alfworld", game.split, game.task_type, game.content_hash, payload=game)


@dataclass(frozen=True)
class _Keep:
    """Which games to keep; None keeps all."""

    splits: Collection[str] | None
    limit: int | None
    ids: Collection[str] | None


def load_games(
    path: str | Path | None = None,
    splits: Collection[str] | None = None,
    limit: int | None = None,
    ids: Collection[str] | None = None,
) -> list[Game]:
    """Read games, sorted by id.

    Args:
        path: A Parquet file of games, a folder of such files, or a folder of the ALFWorld release; None for
            the folder that ``$ALFWORLD_DATA`` names.
        splits: Splits to keep; None for all.
        limit: How many games to keep at most, the first by id; None for all.
        ids: Ids to keep; None for all.

    Raises:
        GameError: The path is missing, a file is damaged, two games share an id, or no game is left.
    """
    root = _root(path)
    keep = _Keep(splits, limit, ids)
    if root.is_file():
        games = _from_tables([root], keep)
    else:
        tables = [file for file in sorted(root.glob("*.parquet")) if _is_game_table(file)]
        games = _from_tables(tables, keep) if tables else _from_folder(root, keep)
    if not games:
        raise _no_games(root, splits)
    return games


def write_games(games: Iterable[Game], path: str | Path) -> None:
    """Write games as a Parquet table for :func:`load_games`, sorted by id, in one piece or not at all.

    Raises:
        StorageError: The table cannot be written there; what was there before is unchanged.
    """
    ordered = sorted(games, key=lambda game: game.id)
    columns = {
        "game_id": [game.id for game in ordered],
        "split": [game.split for game in ordered],
        "task_type": [game.task_type for game in ordered],
        "task_sentence": [game.task_sentence for game in ordered],
        "pddl_problem": [game.pddl_problem for game in ordered],
        "solvable": [True for _ in ordered],
    }
    target = Path(path)
    if not target.name or (os.path.exists(target) and not target.is_file()):  # never replace a device
        raise StorageError("The target is not a file.", where=str(path) or "''", mend=_MEND_TARGET)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            pq.write_table(pa.table(columns, schema=SCHEMA), partial, compression="zstd")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"The games cannot be written: {os.strerror(error.errno) if error.errno else error}.",
            where=str(target),
            mend=_MEND_TARGET,
        ) from error


def _root(path: str | Path | None) -> Path:
    given = path if path is not None else os.environ.get(DATA_VARIABLE)
    if not given:
        raise GameError("No path to games is given.", where=f"${DATA_VARIABLE}", mend=_MEND_PATH)
    root = Path(given).expanduser()
    if not os.path.exists(root):  # false also for a path that is too long or not allowed
        raise GameError("The path to the games does not exist.", where=str(root), mend=_MEND_PATH)
    return root


def _no_games(root: Path, splits: Collection[str] | None) -> GameError:
    """Say that nothing is left, and which splits there would be."""
    present = _splits_of(root) if splits is not None else []
    if splits is None or not present or set(splits) & set(present):
        return GameError("There are no games.", where=str(root), mend=_MEND_PATH)
    return GameError(
        f"There are no games of the splits {', '.join(sorted(splits)) or '(none)'}, only of "
        f"{', '.join(present)}.",
        where=str(root),
        mend="give one of these",
    )


def _splits_of(root: Path) -> list[str]:
    """Return the names of the splits that have games; no game is read."""
    tables = [root] if root.is_file() else [file for file in root.glob("*.parquet") if _is_game_table(file)]
    if not tables:
        return sorted({_id_of(file).split("/", maxsplit=1)[0] for file in root.rglob(GAME_FILE)})
    found: set[str] = set()
    for file in tables:
        table = pq.read_table(file, columns=["split", "solvable"])
        found.update(table.filter(table["solvable"])["split"].unique().to_pylist())
    return sorted(found)


# ---------------------------------------------------------------------- Parquet


def _is_game_table(file: Path) -> bool:
    """Tell whether a Parquet file in a folder holds games: other tables may lie beside them."""
    try:
        names = set(pq.read_schema(file).names)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from error
    return set(SCHEMA.names) <= names


def _from_tables(files: Sequence[Path], keep: _Keep) -> list[Game]:
    games: list[Game] = []
    for file in files:
        games += _from_table(file, keep)
    games.sort(key=lambda game: game.id)
    for first, second in pairwise(games):
        if first.id == second.id:
            raise GameError(
                f"Two games have the id {first.id}.",
                where=f"{first.source} and {second.source}",
                mend="keep one of the two tables",
            )
    return games[: keep.limit]


def _from_table(file: Path, keep: _Keep) -> list[Game]:
    try:
        lacking = set(SCHEMA.names) - set(pq.read_schema(file).names)
        if lacking:
            raise GameError(
                f"The table lacks {', '.join(sorted(lacking))}.",
                where=str(file),
                mend=f"give it the columns {', '.join(SCHEMA.names)}",
            )
        table = pq.read_table(file, columns=SCHEMA.names).select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from error
    if any(column.null_count for column in table.columns):
        raise GameError(
            "A cell of the table is empty.", where=str(file), mend="drop the rows with empty cells"
        )
    mask = table["solvable"]
    for column, wanted in (("split", keep.splits), ("game_id", keep.ids)):
        if wanted is not None:
            mask = pc.and_(mask, pc.is_in(table[column], pa.array(sorted(wanted), pa.string())))
    rows = pc.indices_nonzero(mask)
    if keep.limit is not None:
        # One more than asked for, so that a doubled id at the edge is still seen.
        rows = rows.take(pc.sort_indices(table["game_id"].take(rows))[: keep.limit + 1])
    if len(rows) < table.num_rows:
        table = table.take(rows)
    return [_game_of_row(row, file) for row in table.to_pylist()]


def _game_of_row(row: dict[str, Any], file: Path) -> Game:
    _check_task_type(row["task_type"], f"{file}, game {row['game_id']!r}")
    game = Game(
        id=row["game_id"],
        split=row["split"],
        task_type=row["task_type"],
        pddl_problem=row["pddl_problem"],
        task_sentence=row["task_sentence"],
        source=str(file),
    )
    return _checked(game)


# ---------------------------------------------------------------------- the release's folders


def _from_folder(root: Path, keep: _Keep) -> list[Game]:
    releases = sorted(root.glob("json_2.1.*"))
    top = releases[-1] if releases else root
    games: list[Game] = []
    for game in _folder_games(top, keep):
        if keep.limit is not None and len(games) >= keep.limit:
            break
        games.append(game)
    return games


def _folder_games(top: Path, keep: _Keep) -> Iterator[Game]:
    """Yield the usable games below a folder in order of their ids, one file after the other."""
    files = {_id_of(file): file for file in top.rglob(GAME_FILE)}
    for key in sorted(files):
        split = key.split("/", maxsplit=1)[0]
        if "movable" in key or "Sliced" in key or (keep.splits is not None and split not in keep.splits):
            continue
        if keep.ids is not None and key not in keep.ids:
            continue
        game = _read_game(files[key], key, split)
        if game is not None:
            yield game


def _id_of(file: Path) -> str:
    """Return ``split/task/trial``, whatever folder the search began at."""
    return "/".join(file.resolve().parent.parts[-3:])


def _read_game(file: Path, key: str, split: str) -> Game | None:
    """Read one game file and its neighbour; None where the release says that it cannot be solved."""
    content = _read_json(file)
    if content.get("solvable") is not True:
        return None
    trajectory = _read_json(file.with_name("traj_data.json"))
    problem, grammar = content.get("pddl_problem"), content.get("grammar")
    if not isinstance(problem, str) or not isinstance(grammar, str):
        raise GameError(
            "The game file lacks a problem or a grammar.", where=str(file), mend="download it again"
        )
    sentence = _SENTENCE.search(grammar)
    if sentence is None:
        raise GameError("The game file states no task.", where=str(file), mend="download it again")
    task_type = trajectory.get("task_type")
    _check_task_type(task_type, str(file))
    return _checked(Game(key, split, str(task_type), problem, sentence.group(1), source=str(file)))


def _checked(game: Game) -> Game:
    """Return a game; refuse names that a line cannot show, and text that no file can hold."""
    for what, name in (("id", game.id), ("split", game.split)):
        if not name or not name.isprintable():
            raise GameError(
                f"A game has the {what} {name!r}.", where=game.source, mend="give it a readable one"
            )
    try:
        f"{game.pddl_problem}{game.task_sentence}".encode()
    except UnicodeEncodeError as error:
        where = f"{game.source}, game {game.id}"
        raise GameError("The game holds half a character.", where=where, mend="download it again") from error
    return game


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, error) from error
    if not isinstance(content, dict):
        raise GameError("The file holds no JSON object.", where=str(file), mend="download it again")
    return content


def _check_task_type(task_type: object, where: str) -> None:
    if task_type not in TASK_TYPES:
        raise GameError(
            f"The task type {task_type!r} is not one of ALFWorld's six.",
            where=where,
            mend="use one of " + ", ".join(TASK_TYPES),
        )


def _damaged(file: Path, error: Exception) -> GameError:
    return GameError(
        f"The file cannot be read: {first_line(error)}", where=str(file), mend="download or write it again"
    )
