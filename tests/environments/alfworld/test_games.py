"""Reading games from tables and release folders, and writing them."""

from __future__ import annotations

import dataclasses
import errno
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pivotopd.environments.alfworld.games import DATA_VARIABLE, SCHEMA, Game, load_games, task_of, write_games
from pivotopd.errors import GameError, StorageError
from tests.environments.alfworld import rooms

GRAMMAR = (
    'grammar :: """\n{"intro": [{"rhs": "Your task is to: put some apple on shelf."}]}\n#exec(evil())"""'
)


def some_games() -> list[Game]:
    base = rooms.game()
    return [
        replace(base, id=f"{split}/k/{n}", split=split) for split in ("train", "valid") for n in (2, 1, 3)
    ]


def write_release(root: Path, key: str, **changes: object) -> Path:
    """Write one game as the release does."""
    folder = root / key
    folder.mkdir(parents=True)
    game = {"pddl_problem": rooms.problem(), "grammar": GRAMMAR, "solvable": True, **changes}
    game = {name: value for name, value in game.items() if value is not None}
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    (folder / "traj_data.json").write_text(json.dumps({"task_type": "pick_and_place_simple"}))
    return folder


def test_a_table_comes_back_sorted(tmp_path: Path) -> None:
    games = some_games()
    file = tmp_path / "deep" / "games.parquet"
    write_games(games, file)
    assert [f.name for f in file.parent.iterdir()] == ["games.parquet"]
    read = load_games(file)
    assert read == sorted(games, key=lambda g: g.id)
    assert [g.content_hash for g in read] == [games[0].content_hash] * 6
    assert pq.read_schema(file).equals(SCHEMA)
    assert load_games(tmp_path / "deep") == read
    assert [g.id for g in load_games(file, splits=["valid"])] == ["valid/k/1", "valid/k/2", "valid/k/3"]
    assert [g.id for g in load_games(file, limit=2)] == ["train/k/1", "train/k/2"]
    assert [g.id for g in load_games(file, splits=["valid"], limit=1)] == ["valid/k/1"]
    assert [g.id for g in load_games(file, ids={"train/k/3"})] == ["train/k/3"]


def test_the_path_comes_from_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(GameError, match="No path"):
        load_games()
    write_games(some_games(), tmp_path / "g.parquet")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert len(load_games()) == 6


@pytest.mark.parametrize("path", ["/nosuch", "a" * 300, "a\0b", "/dev/null/x"])
def test_a_path_that_leads_nowhere_is_named(path: str) -> None:
    with pytest.raises(GameError, match="does not exist") as caught:
        load_games(path)
    assert caught.value.where == path


def test_no_games_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GameError, match="does not exist"):
        load_games(tmp_path / "nowhere")
    with pytest.raises(GameError, match="no games") as caught:
        load_games(tmp_path)
    assert caught.value.where == str(tmp_path)
    assert DATA_VARIABLE in (caught.value.mend or "")
    write_games(some_games(), tmp_path / "g.parquet")
    with pytest.raises(GameError, match="no games of the splits test, only of train"):
        load_games(tmp_path, splits=["test"])
    with pytest.raises(GameError, match=r"There are no games\."):
        load_games(tmp_path, splits=["train"], limit=0)
    with pytest.raises(GameError, match="no games"):
        load_games(tmp_path, limit=0)


def test_a_split_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    games = [dataclasses.replace(game, split=f"split{i % 3}") for i, game in enumerate(some_games())]
    file = tmp_path / "g.parquet"
    write_games(games, file)
    table = pq.read_table(file).to_pydict()
    table["solvable"] = [split != "split2" for split in table["split"]]
    pq.write_table(pa.table(table, schema=SCHEMA), file)
    for path in (file, tmp_path):
        with pytest.raises(GameError, match="no games of the splits valid, only of split0, split1") as caught:
            load_games(path, splits=["valid"])
        assert caught.value.mend == "give one of these"


def test_a_split_that_a_release_does_not_have_is_told(tmp_path: Path) -> None:
    for split in ("train", "valid_seen"):
        folder = tmp_path / "json_2.1.1" / split / "task" / "trial"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text("never read")
    for path in (tmp_path, tmp_path / "json_2.1.1"):
        with pytest.raises(GameError, match="no games of the splits valid, only of train, valid_seen"):
            load_games(path, splits=["valid"])


def test_damaged_tables_are_named(tmp_path: Path) -> None:
    file = tmp_path / "g.parquet"
    file.write_bytes(b"not parquet")
    for path in (file, tmp_path):
        with pytest.raises(GameError, match="cannot be read") as caught:
            load_games(path)
        assert caught.value.where == str(file)
    pq.write_table(pa.table({"game_id": ["a"], "split": ["b"]}), file)
    with pytest.raises(GameError, match="lacks pddl_problem"):
        load_games(file)
    rows = {name: ["x"] for name in SCHEMA.names} | {"solvable": [True]}
    pq.write_table(pa.table(rows), file)
    with pytest.raises(GameError, match="task type 'x'"):
        load_games(file)
    pq.write_table(pa.table(rows | {"split": pa.array([None], pa.string())}), file)
    with pytest.raises(GameError, match="empty"):
        load_games(file)
    pq.write_table(pa.table(rows | {"solvable": ["perhaps"]}), file)
    with pytest.raises(GameError, match="cannot be read"):
        load_games(file)


def test_doubled_ids_are_refused_also_at_the_limit(tmp_path: Path) -> None:
    write_games(some_games(), tmp_path / "a.parquet")
    write_games(some_games()[1:2], tmp_path / "b.parquet")
    for limit in (None, 1):
        with pytest.raises(GameError, match="Two games have the id train/k/1"):
            load_games(tmp_path, limit=limit)


def test_an_unsolvable_row_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "g.parquet"
    write_games(some_games(), file)
    table = pq.read_table(file)
    flags = pa.array([True, False] * 3)
    pq.write_table(table.set_column(table.schema.get_field_index("solvable"), "solvable", flags), file)
    assert [g.id for g in load_games(file)] == ["train/k/1", "train/k/3", "valid/k/2"]


def test_a_release_folder_is_read_without_its_grammar(tmp_path: Path) -> None:
    release = tmp_path / "json_2.1.1"
    write_release(release, "train/pick-Apple/trial_2")
    write_release(release, "train/pick-Apple/trial_1", pddl_domain="ignored")
    write_release(release, "valid_seen/pick-Apple/trial_3")
    write_release(release, "train/pick-movable-Apple/trial_4", pddl_problem=7)
    write_release(release, "train/pick-AppleSliced/trial_5", pddl_problem=7)
    write_release(release, "train/pick-Apple/trial_6", solvable=None)
    write_release(release, "train/pick-Apple/trial_7", solvable=False)
    games = load_games(tmp_path)
    assert [g.id for g in games] == [
        "train/pick-Apple/trial_1",
        "train/pick-Apple/trial_2",
        "valid_seen/pick-Apple/trial_3",
    ]
    assert games == load_games(release)
    assert load_games(release / "train") == games[:2]
    assert load_games(tmp_path, splits=["valid_seen"]) == games[2:]
    assert load_games(tmp_path, limit=1) == games[:1]
    assert load_games(tmp_path, ids=["train/pick-Apple/trial_2"]) == games[1:2]
    first = games[0]
    assert (first.split, first.task_type) == ("train", "pick_and_place_simple")
    assert first.task_sentence == "put some apple on shelf."
    assert first.pddl_problem == rooms.problem()
    assert first.source.endswith("trial_1/game.tw-pddl")
    newer = write_release(tmp_path / "json_2.1.2", "train/pick-Apple/trial_9")
    assert [g.source for g in load_games(tmp_path)] == [str(newer / "game.tw-pddl")]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("game.tw-pddl", "{", "cannot be read"),
        ("game.tw-pddl", "[" * 100_000, "cannot be read"),
        ("game.tw-pddl", "[]", "no JSON object"),
        ("game.tw-pddl", '{"solvable": true, "grammar": "x"}', "lacks a problem"),
        ("game.tw-pddl", '{"solvable": true, "grammar": "x", "pddl_problem": "y"}', "states no task"),
        (
            "game.tw-pddl",
            '{"solvable": true, "grammar": "\\"Your task is to: \\ud800.\\"", "pddl_problem": "y"}',
            "half a character",
        ),
        ("traj_data.json", "{}", "task type None"),
        ("traj_data.json", '{"task_type": ["x"]}', "task type"),
    ],
)
def test_a_damaged_game_file_is_named(tmp_path: Path, name: str, text: str, told: str) -> None:
    folder = write_release(tmp_path, "train/pick/trial_1")
    (folder / name).write_text(text)
    with pytest.raises(GameError, match=told) as caught:
        load_games(tmp_path)
    assert str(folder) in (caught.value.where or "")


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J"])
def test_a_name_that_no_line_can_show_is_refused(tmp_path: Path, name: str) -> None:
    for field in ("id", "split"):
        file = tmp_path / f"{field}.parquet"
        write_games([replace(rooms.game(), **{field: name})], file)
        with pytest.raises(GameError, match=f"has the {field}") as caught:
            load_games(file)
        assert caught.value.where == str(file)


def test_games_that_cannot_be_written_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    targets: list[str | Path] = [
        "",
        tmp_path / "file" / "g.parquet",
        tmp_path / "folder",
        tmp_path / ("a" * 300),
        "/dev/null",
    ]
    for target in [*targets, "/proc/nosuch/g.parquet"]:
        with pytest.raises(StorageError) as caught:
            write_games(some_games(), target)
        assert caught.value.where
        assert caught.value.mend
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "kept"
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_leaves_the_table_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **_: object) -> None:
        Path(str(arguments[1])).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "g.parquet"
    write_games(some_games(), target)
    before = target.read_bytes()
    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StorageError, match="No space left"):
        write_games(some_games()[:1], target)
    assert [path.name for path in tmp_path.iterdir()] == ["g.parquet"]
    assert target.read_bytes() == before


def test_the_content_decides_the_hash() -> None:
    game = rooms.game()
    assert replace(game, id="other", source="other").content_hash == game.content_hash
    assert replace(game, task_sentence="do that.").content_hash != game.content_hash
    assert replace(game, pddl_problem=game.pddl_problem + " ").content_hash != game.content_hash
    task = task_of(game)
    assert (task.id, task.environment, task.family) == (game.id, "alfworld", "pick_and_place_simple")
    assert task.content_hash == game.content_hash
    assert task.payload is game
