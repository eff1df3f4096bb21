"""All recorded play of the stock engine is reproduced, and a replay is seen to fail where it should."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pivotopd.environments.alfworld.check import check_games
from pivotopd.environments.alfworld.games import Game, load_games, write_games
from pivotopd.environments.alfworld.traces import SHOWN, check_traces
from pivotopd.errors import GameError
from tests.environments.alfworld import rooms


def test_the_stock_engines_play_is_reproduced_to_the_byte(shared_data: Path) -> None:
    report = check_traces(shared_data / "alfworld" / "traces.parquet", shared_data / "alfworld")
    assert report.first == ()
    assert (report.games, report.turns, report.mismatches) == (78, 1878, 0)


def test_every_kind_of_difference_is_counted(shared_data: Path, tmp_path: Path) -> None:
    table = pq.read_table(shared_data / "alfworld" / "traces.parquet").slice(0, 20)
    rows = table.to_pylist()
    rows[0]["observation"] += " "
    rows[1]["admissible"] = rows[1]["admissible"][::-1]
    rows[2]["won"] = not rows[2]["won"]
    rows[3]["oracle_distance"] = None
    rows[4]["oracle_distance"] += 1
    rows[5]["won"] = not rows[5]["won"]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), tmp_path / "t.parquet")
    report = check_traces(tmp_path / "t.parquet", shared_data / "alfworld")
    assert (report.turns, report.mismatches) == (20, 6)
    assert [d.column for d in report.first] == [
        "observation",
        "admissible",
        "won",
        "oracle_distance",
        "oracle_distance",
    ]
    assert len(report.first) == SHOWN


def test_traces_that_cannot_be_replayed_are_refused(shared_data: Path, tmp_path: Path) -> None:
    traces, games = shared_data / "alfworld" / "traces.parquet", tmp_path / "games.parquet"
    table = pq.read_table(traces)
    write_games(load_games(shared_data / "alfworld", ids=set(table["game_id"].to_pylist())), games)
    file = tmp_path / "t.parquet"
    pq.write_table(table.slice(1, 5), file)
    with pytest.raises(GameError, match="from its reset on"):
        check_traces(file, games)
    pq.write_table(table.drop_columns(["won"]), file)
    with pytest.raises(GameError, match="lack won"):
        check_traces(file, games)
    pq.write_table(table.slice(0, 0), file)
    with pytest.raises(GameError, match="lack rows"):
        check_traces(file, games)
    with pytest.raises(GameError, match="cannot be read"):
        check_traces(tmp_path / "none.parquet", games)
    last = table.column("game_id")[-1].as_py()
    write_games([g for g in load_games(games) if g.id != last], games)
    with pytest.raises(GameError, match="not among the games"):
        check_traces(traces, games)


def test_the_oracle_wins_the_hand_made_games() -> None:
    kinds = {
        "pick_and_place_simple": rooms.APPLE_ON_SHELF,
        "pick_clean_then_place_in_recep": rooms.CLEAN_APPLE,
        "pick_heat_then_place_in_recep": rooms.HEAT_MUG,
        "pick_cool_then_place_in_recep": rooms.COOL_APPLE,
        "pick_two_obj_and_place": rooms.TWO_MUGS,
        "look_at_obj_in_light": rooms.MUG_UNDER_LAMP,
    }
    games = [rooms.game(goal, kind) for kind, goal in kinds.items()]
    for wording in ("move", "put"):
        report = check_games(games, wording=wording)
        assert report.failures == ()
        assert (report.total, report.won) == (6, 6)
    assert check_games(games, limit=2).total == 2


def test_a_game_that_cannot_be_won_is_reported_with_its_reason() -> None:
    won = Game("won", "x", "pick_and_place_simple", rooms.problem(facts=[*rooms.KITCHEN,
               "inReceptacle Apple_bar_2 Shelf_bar_1"]), "do it.", "")  # fmt: skip
    mislabelled = rooms.game(rooms.TWO_MUGS)
    broken = Game("broken", "x", "pick_and_place_simple", "(", "do it.", "")
    # Both hands full for ever: the egg fits nowhere. The delete relaxation does not see it.
    stuck = rooms.problem(facts=[*rooms.KITCHEN, "holds agent1 Egg_bar_1", "holdsAny agent1"])
    blocked = Game("blocked", "x", "pick_and_place_simple", stuck, "do it.", "")
    report = check_games([won, mislabelled, broken, blocked])
    assert (report.total, report.won) == (4, 0)
    reasons = [failure.reason for failure in report.failures]
    for reason, told in zip(
        reasons, ("at the start", "listed as", "brackets", "cannot be reached"), strict=True
    ):
        assert told in reason


def test_a_sample_of_the_official_games_is_won(shared_data: Path) -> None:
    report = check_games(load_games(shared_data / "alfworld", splits=["valid_seen"]))
    assert report.failures == ()
    assert (report.total, report.won) == (140, 140)


@pytest.mark.slow
def test_all_official_games_are_won(shared_data: Path) -> None:
    report = check_games(load_games(shared_data / "alfworld"))
    assert report.failures == ()
    assert (report.total, report.won) == (3693, 3693)
