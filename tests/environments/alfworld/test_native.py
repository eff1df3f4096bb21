"""The environment: rewards, ends, snapshots; and play at random, where the list and the rules must agree."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.environments.alfworld.engine import Engine
from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.native import NativeEnv, Snapshot, state_hash
from pivotopd.environments.alfworld.problem import parse_problem
from pivotopd.environments.base import Task
from pivotopd.errors import EnvironmentFault, GameError
from tests.environments.alfworld import rooms

GAMES = {
    "pick_and_place_simple": rooms.APPLE_ON_SHELF,
    "pick_clean_then_place_in_recep": rooms.CLEAN_APPLE,
    "pick_heat_then_place_in_recep": rooms.HEAT_MUG,
    "pick_cool_then_place_in_recep": rooms.COOL_APPLE,
    "pick_two_obj_and_place": rooms.TWO_MUGS,
    "look_at_obj_in_light": rooms.MUG_UNDER_LAMP,
}
TASKS = [task_of(rooms.game(goal, kind)) for kind, goal in GAMES.items()]
APPLE = TASKS[0]
WIN = [
    "go to fridge 1",
    "open fridge 1",
    "take apple 2 from fridge 1",
    "go to shelf 1",
    "move apple 2 to shelf 1",
]


def test_the_reward_comes_once_with_the_turn_that_wins() -> None:
    env = NativeEnv()
    first = env.reset(APPLE, 0)
    assert (first.reward, first.score, first.won, first.done, first.valid) == (0.0, 0.0, False, False, True)
    answers = [env.step(action) for action in WIN]
    assert [a.reward for a in answers] == [0.0, 0.0, 0.0, 0.0, 10.0]
    assert [a.score for a in answers] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert [(a.won, a.done) for a in answers] == [(False, False)] * 4 + [(True, True)]
    with pytest.raises(EnvironmentFault, match="over"):
        env.step("look")
    assert not env.reset(APPLE, 0).won


def test_an_unrecognised_action_is_a_turn_that_changes_nothing() -> None:
    env = NativeEnv()
    first = env.reset(APPLE, 0)
    answer = env.step("fly")
    again = env.step("fly")
    assert answer == replace(first, observation="Nothing happens.", valid=False)
    assert again == answer
    assert env.snapshot().turns == 2
    assert env.step("look").valid


def test_a_game_won_at_its_reset_ends_with_its_first_action() -> None:
    facts = [*rooms.KITCHEN, "inReceptacle Apple_bar_2 Shelf_bar_1"]
    game = Game("x", "hand", "pick_and_place_simple", rooms.problem(facts=facts), "do it.", "test")
    env = NativeEnv()
    first = env.reset(task_of(game), 0)
    assert (first.won, first.done, first.reward, first.score) == (True, False, 0.0, 1.0)
    answer = env.step("look")
    assert (answer.won, answer.done, answer.reward) == (True, True, 10.0)


def test_spec_promises_exact_value_forks_and_names_the_wording() -> None:
    spec = NativeEnv("put").spec
    assert (spec.determinism, spec.fork) == ("exact", "value")
    assert spec.version.endswith("/put")
    assert NativeEnv().spec != spec


def test_misuse_is_told() -> None:
    env = NativeEnv()
    for call in (env.snapshot, env.state_hash, lambda: env.step("look")):
        with pytest.raises(EnvironmentFault, match="No episode"):
            call()
    with pytest.raises(EnvironmentFault, match="payload"):
        env.reset(Task("t", "alfworld", "s", "f", "h", payload={"a": 1}), 0)
    broken = replace(rooms.game(), pddl_problem="(define", id="hand/broken")
    with pytest.raises(GameError, match="brackets") as caught:
        env.reset(task_of(broken), 0)
    assert caught.value.where == "hand/broken"
    env.reset(APPLE, 0)
    mark = env.snapshot()
    for other in (replace(mark, task_id="x"), replace(mark, content_hash="x"), replace(mark, wording="put")):
        with pytest.raises(EnvironmentFault, match="snapshot"):
            env.restore(other)
    env.close()
    with pytest.raises(EnvironmentFault, match="No episode"):
        env.step("look")


def test_the_hash_knows_every_part_of_the_state() -> None:
    world = parse_problem(rooms.problem(), "do it.", "test")
    start = world.start
    changed = [
        start._replace(location="loc_bar_1"),
        start._replace(held="mug_bar_1"),
        *(
            start._replace(**{name: getattr(start, name) | {("mug_bar_3", "x_bar_1")}})
            for name in ("inside", "object_at", "removed")
        ),
        *(
            start._replace(**{name: getattr(start, name) | {"mug_bar_3"}})
            for name in ("opened", "clean", "hot", "cool", "sliced", "toggled")
        ),
    ]
    assert len({state_hash(state) for state in [start, *changed]}) == len(start) + 1


def choose(data: st.DataObject, admissible: tuple[str, ...]) -> str:
    """Draw an action: mostly one of the list, and of it mostly one that is not a ``go to``."""
    deeds = [a for a in admissible if not a.startswith("go to")]
    return data.draw(
        st.one_of(
            st.sampled_from(deeds),
            st.sampled_from(admissible),
            st.sampled_from(["fly", "", "go to shelf 9", "take mug 1 from cabinet 2", "slice"]),
        )
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_snapshot_continues_as_straight_play_does(data: st.DataObject) -> None:
    task = data.draw(st.sampled_from(TASKS))
    env = NativeEnv()
    answer = env.reset(task, 0)
    marks: list[tuple[Snapshot, str]] = []
    answers = [answer]
    actions: list[str] = []
    for _ in range(data.draw(st.integers(1, 25))):
        marks.append((env.snapshot(), env.state_hash()))
        if answer.done:
            break
        actions.append(choose(data, answer.admissible or ()))
        answer = env.step(actions[-1])
        answers.append(answer)
    end = env.state_hash()
    at = data.draw(st.integers(0, len(marks) - 1))
    mark, digest = marks[at]
    fresh = NativeEnv()
    fresh.reset(task, 7)
    carried = pickle.loads(pickle.dumps(mark))
    assert carried == mark
    restored = fresh.restore(carried)
    # Whether the reset or a won turn was rewarded follows from the turn count, so nothing is lost.
    assert restored == answers[at]
    assert fresh.state_hash() == digest
    assert [fresh.step(action) for action in actions[at:]] == answers[at + 1 :]
    assert fresh.state_hash() == end


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_list_and_the_rules_agree(data: st.DataObject) -> None:
    """Each listed command is recognised; every command that ever was listed elsewhere is refused."""
    game = data.draw(st.sampled_from(TASKS)).payload
    wording = data.draw(st.sampled_from(["move", "put"]))
    engine = Engine(parse_problem(game.pddl_problem, "do it.", "test"), wording)
    state = engine.world.start
    ever: set[str] = set()
    for _ in range(data.draw(st.integers(1, 20))):
        listed = engine.admissible(state)
        assert list(listed) == sorted(set(listed))
        ever.update(listed)
        for command in listed:
            after, text, valid = engine.apply(state, command)
            assert valid
            assert text != "Nothing happens."
            still = command.split()[0] in {"look", "inventory", "help", "examine"}
            repeated = command.split()[0] in {"use", "clean", "heat", "cool", "slice"}
            assert (after == state) if still else (repeated or after != state)
        for command in ever - set(listed):
            assert engine.apply(state, command) == (state, "Nothing happens.", False)
        state = engine.apply(state, choose(data, listed)).state


@given(st.text(max_size=40))
def test_any_command_is_answered(command: str) -> None:
    env = NativeEnv()
    first = env.reset(APPLE, 0)
    answer = env.step(command)
    assert answer.valid == (command.strip() in (first.admissible or ()))


PLAY = """
import hashlib
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.seeds import rng_of
from tests.environments.alfworld.test_native import TASKS
digest = hashlib.sha256()
for task in TASKS:
    env = NativeEnv()
    answer = env.reset(task, 0)
    for turn in range(60):
        digest.update(repr(answer).encode() + env.state_hash().encode())
        if answer.done:
            break
        answer = env.step(answer.admissible[rng_of("play", task.id, turn).integers(len(answer.admissible))])
print(digest.hexdigest())
"""


def test_the_hash_seed_of_the_process_does_not_matter() -> None:
    root = Path(__file__).resolve().parents[3]
    seen = set()
    for seed in ("0", "12345"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", PLAY]
        seen.add(
            subprocess.run(command, check=True, env=env, cwd=root, stdout=subprocess.PIPE, text=True).stdout
        )
    assert len(seen) == 1
    assert len(seen.pop().strip()) == 64
