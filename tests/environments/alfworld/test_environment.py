"""The environment's face: splits, what is held out, engines, and the oracle on stored states."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.config import EnvironmentSection, GeneratedGames
from pivotopd.environments.alfworld import stock
from pivotopd.environments.alfworld.environment import INVALID_PENALTY, AlfworldEnvironment
from pivotopd.environments.alfworld.games import Game, task_of, write_games
from pivotopd.environments.alfworld.mirrored import MirroredStockEnv
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.base import Task
from pivotopd.environments.registry import open_environment
from pivotopd.errors import ConfigError, EnvironmentFault, GameError, ReplayDivergence
from tests import play
from tests.environments.alfworld import rooms

BASE = rooms.game()


def hand(number: int, split: str = "train", text: int | None = None) -> Game:
    """A game whose content goes by ``text``, and by its number where that is not given."""
    sentence = f"do it {number if text is None else text} times."
    return replace(BASE, id=f"{split}/t/{number:03d}", split=split, task_sentence=sentence)


def over(folder: Path, games: list[Game], **changes: object) -> AlfworldEnvironment:
    path = folder / "games.parquet"
    write_games(games, path)
    return AlfworldEnvironment(EnvironmentSection.model_validate({"games": str(path), **changes}))


# ---------------------------------------------------------------------- splits


def test_generated_splits_share_no_game_and_repeat() -> None:
    section = EnvironmentSection(generated=play.GAMES)
    splits = {name: AlfworldEnvironment(section).tasks(name) for name in ("train", "valid", "test")}
    assert {name: len(tasks) for name, tasks in splits.items()} == {"train": 8, "valid": 4, "test": 4}
    everything = [task for tasks in splits.values() for task in tasks]
    assert len({task.id for task in everything}) == len({task.content_hash for task in everything}) == 16
    for name, tasks in splits.items():
        assert [task.id for task in tasks] == sorted(task.id for task in tasks)
        assert {task.split for task in tasks} == {name}
        assert [task.content_hash for task in AlfworldEnvironment(section).tasks(name)] == [
            task.content_hash for task in tasks
        ]
    assert {task.family for task in splits["train"]} == set(GeneratedGames().task_types)
    with pytest.raises(ConfigError, match="no split 'dev'") as caught:
        AlfworldEnvironment(section).tasks("dev")
    assert "train, valid, test" in (caught.value.mend or "")


def test_the_games_own_valid_split_is_used(tmp_path: Path) -> None:
    games = [*(hand(i) for i in range(30)), *(hand(i, "valid") for i in range(3)), hand(0, "other")]
    env = over(tmp_path, games)
    assert [task.id for task in env.tasks("valid")] == [f"valid/t/{i:03d}" for i in range(3)]
    assert len(env.tasks("train")) == 30
    assert [task.id for task in env.tasks("other")] == ["other/t/000"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=40).filter(lambda texts: len(set(texts)) > 1),
    st.integers(1, 9),
)
def test_what_is_held_out_goes_by_content(
    tmp_path_factory: pytest.TempPathFactory, texts: list[int], holdout: int
) -> None:
    games = [hand(i, text=text) for i, text in enumerate(texts)]
    env = over(tmp_path_factory.mktemp("held"), games, holdout=holdout)
    train, valid = env.tasks("train"), env.tasks("valid")
    assert sorted(task.id for task in (*train, *valid)) == sorted(game.id for game in games)
    held = {task.content_hash for task in valid}
    assert not held & {task.content_hash for task in train}
    contents = len(set(texts))
    assert len(held) == min(holdout, max(1, contents // 10))
    # Other ids, so another order of the file: the same contents are held out.
    other = [hand(99 - i, text=text) for i, text in enumerate(texts)]
    again = over(tmp_path_factory.mktemp("held"), other, holdout=holdout)
    assert {task.content_hash for task in again.tasks("valid")} == held
    assert again.tasks("train") != train


def test_one_game_cannot_be_split(tmp_path: Path) -> None:
    env = over(tmp_path, [hand(0)])
    assert len(env.tasks("train")) == 1
    with pytest.raises(GameError, match="no games of split 'valid', only of train"):
        env.tasks("valid")


def test_a_split_that_is_not_there_is_told(tmp_path: Path) -> None:
    env = over(tmp_path, [hand(i, "dev") for i in range(3)])
    with pytest.raises(GameError, match="no games of split 'train', only of dev") as caught:
        env.tasks("train")
    assert caught.value.where == str(tmp_path / "games.parquet")
    assert "train_split" in (caught.value.mend or "")
    with pytest.raises(GameError, match="no games of the splits test"):
        env.tasks("test")
    named = over(tmp_path, [hand(i, "dev") for i in range(3)], train_split="dev")
    assert (len(named.tasks("dev")), len(named.tasks("valid"))) == (2, 1)


def test_official_games_hold_their_valid_games_out_of_train(shared_data: Path) -> None:
    section = EnvironmentSection(games=str(shared_data / "alfworld"), valid_split="valid_seen")
    env = AlfworldEnvironment(section)
    seen = env.tasks("valid_seen")
    assert len(seen) == 140
    train, valid = env.tasks("train"), env.tasks("valid")
    assert len(valid) == 128
    assert len(train) + len(valid) == 3553
    parts = [{task.content_hash for task in tasks} for tasks in (train, valid, seen)]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    assert len({task.family for task in train}) == 6
    smaller = AlfworldEnvironment(section.model_copy(update={"holdout": 16}))
    assert {task.id for task in smaller.tasks("valid")} < {task.id for task in valid}
    answer = env.open().reset(seen[0], 0)
    assert env.instruction(seen[0]) in answer.observation


# ---------------------------------------------------------------------- fingerprints, engines


def test_a_fingerprint_names_engine_split_and_contents(tmp_path: Path) -> None:
    games = [hand(i) for i in range(4)]
    first = over(tmp_path, games).data_fingerprint("train")
    assert over(tmp_path, list(reversed(games))).data_fingerprint("train") == first
    changed = [*games[:3], replace(games[3], task_sentence="do it otherwise.")]
    others = {
        over(tmp_path, games, wording="put").data_fingerprint("train"),
        over(tmp_path, games).data_fingerprint("valid"),
        over(tmp_path, changed).data_fingerprint("train"),
        over(tmp_path, games[:3]).data_fingerprint("train"),
    }
    assert len(others - {first}) == 4


def test_the_configuration_opens_it() -> None:
    env = open_environment(EnvironmentSection(generated=play.GAMES, wording="put", prompt="compact"))
    assert isinstance(env, AlfworldEnvironment)
    opened = env.open()
    assert isinstance(opened, NativeEnv)
    assert opened.spec == env.spec
    assert env.spec.version.endswith("/put")
    assert env.invalid_penalty == INVALID_PENALTY == 0.1
    assert env.open() is not opened
    with pytest.raises(GameError, match="carries no ALFWorld game"):
        env.instruction(Task("t", "alfworld", "s", "f", "h", payload=None))


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stock.packages.cache_clear()
    monkeypatch.setitem(sys.modules, "textworld", None)
    yield
    stock.packages.cache_clear()


@pytest.mark.usefixtures("without_extra")
def test_the_stock_engine_without_its_extra_is_refused_at_once() -> None:
    section = EnvironmentSection(generated=play.GAMES, engine="stock")
    with pytest.raises(ConfigError, match="not installed") as caught:
        AlfworldEnvironment(section)
    assert "pivotopd[alfworld]" in (caught.value.mend or "")
    AlfworldEnvironment(EnvironmentSection(generated=play.GAMES))


@pytest.mark.reference
def test_the_stock_engine_plays_beside_its_twin(stock_engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = AlfworldEnvironment(EnvironmentSection(generated=play.GAMES, engine="stock"))
    task = env.tasks("train")[0]
    opened = env.open()
    assert isinstance(opened, MirroredStockEnv)
    assert env.spec == opened.spec
    assert stock_engine in env.spec.version
    native = play.environment().open()
    assert opened.reset(task, 0) == native.reset(task, 0)
    mark = opened.snapshot()
    actions = play.plan(task)[:2]
    for action in actions:
        assert opened.step(action) == native.step(action)
        assert (opened.dump(), opened.state_hash()) == (native.dump(), native.state_hash())
    assert env.oracle(task).distance(opened.dump()) == len(play.plan(task)) - 2
    with pytest.raises(EnvironmentFault, match="cannot load"):
        opened.load(task, opened.dump())
    assert opened.restore(mark) == native.reset(task, 0)
    monkeypatch.setattr(
        NativeEnv, "step", lambda self, action: replace(native.reset(task, 0), observation="Else.")
    )
    with pytest.raises(ReplayDivergence, match=r"engines differ: stock .* native 'Else"):
        opened.step("look")
    opened.close()


# ---------------------------------------------------------------------- the oracle


def test_the_oracle_reads_stored_states_in_either_wording() -> None:
    for wording, verb in (("move", "move"), ("put", "put")):
        section = EnvironmentSection.model_validate(
            {"generated": play.GAMES.model_dump(), "wording": wording}
        )
        env = AlfworldEnvironment(section)
        task = env.tasks("train")[0]
        oracle, one = env.oracle(task), env.open()
        assert env.oracle(task) is oracle
        seen = one.reset(task, 0)
        left = oracle.distance(play.dumped(one))
        while not seen.done:
            action = oracle.best_actions(play.dumped(one), None)[0]
            assert action in (seen.admissible or ())
            seen = one.step(action)
            after = oracle.distance(play.dumped(one))
            assert left is not None
            assert after == left - 1
            left = after
        assert left == 0
        assert action.startswith(verb)
        assert oracle.best_actions(play.dumped(one), None) == ()


def test_the_oracle_refuses_what_is_no_state() -> None:
    task = play.environment().tasks("train")[0]
    with pytest.raises(EnvironmentFault, match="damaged") as caught:
        play.environment().oracle(task).distance(b"{}")
    assert caught.value.where == task.id


def test_a_task_of_the_same_id_and_other_content_has_its_own_oracle() -> None:
    env = play.environment()
    one, other = task_of(rooms.game()), task_of(rooms.game(rooms.HEAT_MUG))
    assert one.id == other.id
    assert env.oracle(one) is not env.oracle(other)
