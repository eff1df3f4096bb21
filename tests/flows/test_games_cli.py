"""``pivotopd games``: tables are written and read, checks fail with exit code 4, a person can win a game."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from flows.cli import app
from pivotopd.environments.alfworld.engine import engine_of
from pivotopd.environments.alfworld.games import Game, load_games, task_of, write_games
from pivotopd.environments.alfworld.generator import generate_games
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.oracle import Oracle

ROOT = Path(__file__).resolve().parents[2]


def games_command(*arguments: object, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["games", *map(str, arguments)], input=typed)


@pytest.fixture(scope="module")
def games() -> tuple[Game, ...]:
    return generate_games(3, "train", 6)


@pytest.fixture
def table(games: tuple[Game, ...], tmp_path: Path) -> Path:
    path = tmp_path / "games.parquet"
    write_games(games, path)
    return path


def winning_actions(game: Game) -> list[str]:
    world = engine_of(game.pddl_problem, game.task_sentence, game.id, "move").world
    oracle, env = Oracle(world), NativeEnv()
    env.reset(task_of(game))
    actions: list[str] = []
    while best := oracle.optimal_actions(env.snapshot().state):
        actions.append(best[0])
        env.step(best[0])
    return actions


# ---------------------------------------------------------------------- generate, import, list


def test_generate_writes_the_same_games_for_the_same_seed(tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("a.parquet", "b.parquet", "c.parquet"))
    for path, seed in ((first, 5), (second, 5), (other, 6)):
        done = games_command("generate", path, "--count", 4, "--seed", seed, "--split", "valid")
        assert done.exit_code == 0
        assert done.stdout == f"4 games written to {path}\n"
    hashes = [[game.content_hash for game in load_games(path)] for path in (first, second, other)]
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]
    assert {game.split for game in load_games(first)} == {"valid"}


def test_generate_makes_only_the_types_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "games.parquet"
    games_command("generate", path, "--count", 3, "--type", "look_at_obj_in_light")
    assert {game.task_type for game in load_games(path)} == {"look_at_obj_in_light"}


def test_generate_refuses_an_unknown_type(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "games", "generate", tmp_path / "x.parquet", "--type", "juggle"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "juggle" in done.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_import_copies_games_and_keeps_their_content(
    table: Path, tmp_path: Path, games: tuple[Game, ...]
) -> None:
    target = tmp_path / "copy.parquet"
    done = games_command("import", table, target, "--limit", 2)
    assert done.stdout == f"2 games written to {target}\n"
    first = sorted(games, key=lambda game: game.id)[:2]
    assert [game.content_hash for game in load_games(target)] == [game.content_hash for game in first]


def test_list_counts_by_split_and_type(table: Path) -> None:
    lines = games_command("list", table).stdout.splitlines()
    assert lines[-1] == "games: 6"
    assert len(lines) == 7  # six types, one game each
    assert all(line.startswith("train ") and line.endswith(" 1") for line in lines[:-1])


def test_list_ids(table: Path, games: tuple[Game, ...]) -> None:
    lines = games_command("list", table, "--ids").stdout.splitlines()
    assert lines == [f"{g.id}  {g.task_sentence}" for g in sorted(games, key=lambda g: g.id)]


def test_a_missing_path_is_an_environment_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "games", "list", tmp_path / "none"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert str(tmp_path / "none") in done.stderr
    assert "mend:" in done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------- check


def test_check_wins_every_generated_game(table: Path) -> None:
    done = games_command("check", table)
    assert done.stdout.splitlines()[-1] == "won: 6 of 6"
    assert done.exit_code == 0


def test_check_fails_on_a_game_that_is_not_what_it_says(games: tuple[Game, ...], tmp_path: Path) -> None:
    kinds = {game.task_type: game for game in games}
    wrong = dataclasses.replace(kinds["pick_and_place_simple"], task_type="look_at_obj_in_light")
    path = tmp_path / "wrong.parquet"
    write_games([wrong, kinds["pick_heat_then_place_in_recep"]], path)
    done = games_command("check", path)
    assert done.exit_code == 4
    assert done.stdout.splitlines()[-1] == "won: 1 of 2"
    assert wrong.id in done.stdout


def record(game: Game) -> list[dict[str, object]]:
    """Play a game to its end as the traces of the stock engine are recorded."""
    world = engine_of(game.pddl_problem, game.task_sentence, game.id, "move").world
    oracle, env = Oracle(world), NativeEnv()
    answer = env.reset(task_of(game))
    rows: list[dict[str, object]] = []
    for turn, action in enumerate([None, *winning_actions(game)]):
        answer = answer if action is None else env.step(action)
        rows.append(
            {
                "game_id": game.id,
                "turn": turn,
                "action": action,
                "observation": answer.observation,
                "admissible": list(answer.admissible or ()),
                "won": answer.won,
                "oracle_distance": oracle.distance(env.snapshot().state),
            }
        )
    return rows


def test_check_traces_counts_turns_and_mismatches(
    table: Path, games: tuple[Game, ...], tmp_path: Path
) -> None:
    rows = record(games[0])
    traces = tmp_path / "traces.parquet"
    pq.write_table(pa.Table.from_pylist(rows), traces)
    done = games_command("check", table, "--traces", traces)
    assert done.stdout.splitlines()[-1] == f"turns: {len(rows)}, mismatches: 0"
    assert done.exit_code == 0

    rows[1]["observation"] = "Something else."
    pq.write_table(pa.Table.from_pylist(rows), traces)
    done = games_command("check", table, "--traces", traces)
    assert done.exit_code == 4
    assert done.stdout.splitlines()[-1] == f"turns: {len(rows)}, mismatches: 1"
    assert "Something else." in done.stdout


def test_check_reference_refuses_a_wording_that_the_stock_engine_lacks(table: Path) -> None:
    done = games_command("check", table, "--reference", "--wording", "put")
    assert done.exit_code == 1
    assert "0.4 only" in str(done.exception)


@pytest.mark.reference
@pytest.mark.slow
def test_check_reference_finds_no_mismatch(table: Path, stock_engine: str) -> None:
    done = games_command("check", table, "--reference", "--limit", 2)
    assert done.exit_code == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[-2] == "won: 2 of 2"
    assert lines[-1].startswith("turns: ")
    assert lines[-1].endswith(", mismatches: 0")


# ---------------------------------------------------------------------- play


def test_a_person_wins_with_the_oracles_actions(table: Path, games: tuple[Game, ...]) -> None:
    actions = winning_actions(games[0])
    done = games_command("play", table, "--game", games[0].id, typed="\n".join(actions))
    assert done.exit_code == 0
    assert done.stdout.endswith(f"\nwon in {len(actions)} turns\n")


def test_play_offers_hint_actions_and_undo(table: Path, games: tuple[Game, ...]) -> None:
    actions = winning_actions(games[0])
    typed = f"oracle\nactions\n{actions[0]}\noracle\nundo\noracle\nquit\n"
    shown = games_command("play", table, "--game", games[0].id, typed=typed).stdout
    hints = [line for line in shown.splitlines() if "turns from the goal" in line]
    assert [int(hint.split()[0]) for hint in hints] == [len(actions), len(actions) - 1, len(actions)]
    assert hints[0] == hints[2]
    assert actions[0] in hints[0]
    assert "\n  look\n" in shown
    assert shown.endswith("\nnot won, 0 turns\n")


def test_play_a_new_game_needs_no_path() -> None:
    done = games_command("play", "--generate", 4, typed="oracle\n")
    assert done.exit_code == 0
    assert "turns from the goal" in done.stdout
    assert games_command("play", "--generate", 4).stdout == games_command("play", "--generate", 4).stdout


def test_play_refuses_a_part_that_names_several_games(table: Path) -> None:
    done = games_command("play", table, "--game", "generated")
    assert done.exit_code == 1
    assert "6 games match" in str(done.exception)
