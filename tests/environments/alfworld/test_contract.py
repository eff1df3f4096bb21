"""The native engine says what the stock engine says, to the byte; the oracle is as short as its planner."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from pivotopd.environments.alfworld.contract import (
    PLAYS,
    ContractReport,
    PlayReport,
    check_against_stock,
    check_play,
    first_difference,
    play_native,
    spread,
)
from pivotopd.environments.alfworld.engine import engine_of
from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.generator import generate_games
from pivotopd.environments.alfworld.goals import TASK_TYPES
from pivotopd.environments.alfworld.mirrored import MirroredStockEnv
from pivotopd.environments.alfworld.native import NativeEnv
from pivotopd.environments.alfworld.oracle import Oracle
from pivotopd.environments.alfworld.stock import StockEnv, play_stock
from pivotopd.environments.alfworld.stock_planner import NO_PLAN, stock_plan_length
from pivotopd.errors import ConfigError, EnvironmentFault, GameError, ReplayDivergence
from tests.environments.alfworld import rooms

OFFICIAL = 66
GENERATED = 18
TURNS = 16


@pytest.fixture(scope="module")
def generated() -> list[Game]:
    return spread(generate_games(17, "contract", GENERATED), None)


@pytest.fixture(scope="module")
def game(generated: list[Game]) -> Game:
    return next(game for game in generated if game.task_type == "pick_heat_then_place_in_recep")


def said(report: ContractReport) -> str:
    return "\n".join(str(difference) for difference in report.mismatches[:5])


# ---------------------------------------------------------------------- without the stock engine


def test_games_are_spread_over_the_task_types_by_id(generated: list[Game]):
    chosen = spread(reversed(generated), 7)
    assert [game.task_type for game in chosen[:6]] == sorted(TASK_TYPES)
    assert chosen[0].task_type == chosen[6].task_type
    assert chosen[0].id < chosen[6].id
    assert sorted(game.id for game in spread(generated, None)) == sorted(game.id for game in generated)


@pytest.mark.parametrize("play", PLAYS)
def test_a_play_depends_on_its_seed_and_on_nothing_else(game: Game, play):
    first, second = play_native(game, play, 12, 5), play_native(game, play, 12, 5)
    assert first == second
    assert play_native(game, play, 12, 6)[0] != first[0]


def test_guided_plays_win_and_random_ones_use_bad_commands(generated: list[Game]):
    guided = [play_native(game, "guided", 40, 0)[1][-1] for game in generated]
    assert sum(answer.done for answer in guided) >= len(guided) - 2
    answers = [answer for game in generated for answer in play_native(game, "random", 20, 0)[1]]
    assert 0.05 < sum(not answer.valid for answer in answers) / len(answers) < 0.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("observation", "Nothing happens"),
        ("admissible", ("look",)),
        ("won", True),
        ("done", True),
        ("score", 1.0),
        ("reward", 10.0),
        ("valid", False),
    ],
)
def test_every_field_is_compared(game: Game, field: str, value):
    actions = ["look", "inventory", "help"]

    def faulty(played: Game, commands) -> list:
        env = NativeEnv()
        answers = [env.reset(task_of(played)), *(env.step(command) for command in commands)]
        answers[2] = dataclasses.replace(answers[2], **{field: value})
        return answers

    env = NativeEnv()
    native = [env.reset(task_of(game)), *(env.step(command) for command in actions)]
    difference = first_difference(game, "random", actions, native, faulty(game, actions))
    assert difference is not None
    assert (difference.turn, difference.field, difference.actions) == (2, field, ("look", "inventory"))
    assert first_difference(game, "random", actions, native, native) is None
    report = check_play(game, "random", 6, 0, player=faulty)
    assert report.difference is not None


def test_a_play_that_ends_early_differs(game: Game):
    report = check_play(game, "random", 6, 0, player=lambda played, actions: native_only(played, actions[:3]))
    assert report.difference is not None
    assert (report.difference.field, report.difference.turn) == ("length", 4)


def native_only(game: Game, actions) -> list:
    env = NativeEnv()
    return [env.reset(task_of(game)), *(env.step(action) for action in actions)]


def test_report_counts():
    plays = [
        PlayReport("a", "look", "random", 5, 1, won=False, difference=None),
        PlayReport("a", "look", "guided", 3, 0, won=True, difference=None),
        PlayReport("b", "heat", "guided", 2, 0, won=True, difference=None),
    ]
    report = ContractReport(tuple(plays))
    assert (report.games, report.turns, report.wins, report.mismatches) == (2, 10, 2, ())
    assert report.task_types == {"heat": 1, "look": 1}


# ---------------------------------------------------------------------- with it


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.usefixtures("stock_engine")
def test_official_games_play_alike(official_games: list[Game]):
    report = check_against_stock(spread(official_games, OFFICIAL), TURNS, seed=1, processes=1)
    assert report.mismatches == (), said(report)
    assert Counter(report.task_types) == dict.fromkeys(sorted(TASK_TYPES), OFFICIAL // 6)
    assert report.turns > 20 * OFFICIAL
    assert report.wins > OFFICIAL // 2


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.usefixtures("stock_engine")
def test_generated_games_play_alike(generated: list[Game]):
    report = check_against_stock(generated, TURNS, seed=2, processes=1)
    assert report.mismatches == (), said(report)
    assert report.wins > GENERATED // 2


CRAFTED = {
    "as it is": ([], []),
    "agent starts at the shelves": (["atLocation agent1 loc_bar_9"], ["atLocation agent1 loc_bar_4"]),
    "lamp on two shelves at one place": ([], ["inReceptacle DeskLamp_bar_1 Shelf_bar_1"]),
    "doors open, a dirty start": (
        [],
        ["opened Fridge_bar_1", "opened Cabinet_bar_1", "isHot Mug_bar_1", "isClean Bowl_bar_1"],
    ),
    "one mug in three places": ([], ["inReceptacle Mug_bar_2 Shelf_bar_2"]),
    "goal holds at the start": ([], ["inReceptacle Apple_bar_1 Shelf_bar_2"]),
    "stale locations": (
        ["objectAtLocation Apple_bar_1 loc_bar_1"],
        ["objectAtLocation Apple_bar_1 loc_bar_6", "objectAtLocation Mug_bar_1 loc_bar_1"],
    ),
    "everything fits, a butter knife too": (
        ["objectType Mug_bar_3 MugType"],
        ["objectType Mug_bar_3 ButterKnifeType", "canContain ShelfType ButterKnifeType"],
    ),
}
"""Rooms with what official games lack or rarely have: facts left out, and facts added."""


def typed(text: str) -> str:
    """Declare every name with its type: the stock engine's translator looks at it."""
    kinds = {
        "agent1": "agent",
        **dict.fromkeys(rooms.RECEPTACLES, "receptacle"),
        **{f"{kind}Type": "rtype" for kind, _ in rooms.RECEPTACLES.values()},
        **dict.fromkeys(("KnifeType", "ButterKnifeType"), "otype"),
    }

    def declare(found: re.Match[str]) -> str:
        name = found[1]
        kind = kinds.get(name, "location" if name.startswith("loc_") else "object")
        kind = "otype" if name.endswith("Type") and name not in kinds else kind
        return f"  {name} - {kind}\n"

    head, middle, tail = text.partition("(:init")
    head = re.sub(r"  (\w+) - object\n", declare, head.replace(")\n", "\n)\n"))
    missing = [name for name in ("KnifeType", "ButterKnifeType") if f" {name} -" not in head]
    head = head.replace("(:objects\n", "(:objects\n" + "".join(f"  {name} - otype\n" for name in missing))
    return head + middle + tail


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.usefixtures("stock_engine")
@pytest.mark.parametrize("room", CRAFTED)
def test_crafted_rooms_play_alike(room: str):
    without, extra = CRAFTED[room]
    facts = [fact for fact in rooms.KITCHEN if fact not in without] + extra
    for number, goal in enumerate((rooms.TWO_MUGS, rooms.APPLE_ON_SHELF, rooms.MUG_UNDER_LAMP)):
        if room == "goal holds at the start" and goal != rooms.APPLE_ON_SHELF:
            continue
        game = Game(f"{room}/{number}", "hand", "hand", typed(rooms.problem(goal, facts)), "do it.", "test")
        for seed, play in itertools.product(range(3), PLAYS):
            report = check_play(game, play, 30, seed)
            assert report.difference is None


@pytest.mark.reference
@pytest.mark.usefixtures("stock_engine")
def test_memoised_engine_equals_the_untouched_one(generated: list[Game]):
    for game in generated[:2]:
        for play in PLAYS:
            actions, native = play_native(game, play, 12, 3)
            untouched = play_stock(game, actions, memoise=False)
            assert play_stock(game, actions) == untouched
            assert first_difference(game, play, actions, native, untouched) is None


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.usefixtures("stock_engine")
def test_oracle_is_as_short_as_the_stock_planner(generated: list[Game]):
    answered = 0
    for index, game in enumerate(generated[:12]):
        actions = play_native(game, "random", 6, 4)[0] if index % 2 else []
        env = NativeEnv()
        env.reset(task_of(game))
        for action in actions:
            env.step(action)
        oracle = Oracle(engine_of(game.pddl_problem, game.task_sentence, game.id, "move").world)
        distance = oracle.distance(env.snapshot().state)
        planned = stock_plan_length(game, actions, 3.0)
        if planned is not None:
            answered += 1
            assert planned == (NO_PLAN if distance is None else distance), (game.id, actions)
    assert answered >= 4


@pytest.mark.reference
@pytest.mark.usefixtures("stock_engine")
def test_planner_knows_that_there_is_no_plan(generated: list[Game]):
    """A hand that is blocked for good: the oracle says None, the planner finds no plan."""
    blocked = next(filter(None, map(blocking_actions, generate_games(23, "contract", 60))), None)
    assert blocked is not None, "no generated game has a dead end"
    game, actions = blocked
    assert stock_plan_length(game, actions, 60.0) == NO_PLAN


def blocking_actions(game: Game) -> tuple[Game, list[str]] | None:
    """Find the way to an object that fits nowhere, and take it."""
    world = engine_of(game.pddl_problem, game.task_sentence, game.id, "move").world
    names, oracle = world.names, Oracle(world)
    for thing, receptacle in sorted(world.start.inside):
        name = names[receptacle]
        doors = [f"open {name}"] if receptacle in world.openable else []
        actions = [f"go to {name}", *doors, f"take {names[thing]} from {name}"]
        env = NativeEnv()
        env.reset(task_of(game))
        answers = [env.step(action) for action in actions]
        if answers[-1].valid and oracle.distance(env.snapshot().state) is None:
            return game, actions
    return None


@pytest.mark.reference
@pytest.mark.usefixtures("stock_engine")
def test_snapshot_is_replay(game: Game):
    actions, _ = play_native(game, "random", 10, 7)
    native, stock = NativeEnv(), StockEnv()
    for env in (native, stock):
        env.reset(task_of(game))
        for action in actions[:5]:
            env.step(action)
    kept = native.snapshot(), stock.snapshot(), stock.state_hash()
    straight = [(native.step(action), stock.step(action)) for action in actions[5:]]
    back = native.restore(kept[0]), stock.restore(kept[1])
    assert back[0] == back[1]
    assert stock.snapshot() == kept[1]
    assert stock.state_hash() == kept[2]
    assert [(native.step(action), stock.step(action)) for action in actions[5:]] == straight


@pytest.mark.reference
@pytest.mark.usefixtures("stock_engine")
def test_replay_that_diverges_is_refused(game: Game, generated: list[Game]):
    env = StockEnv()
    env.reset(task_of(game))
    env.step("look")
    snapshot = env.snapshot()
    with pytest.raises(ReplayDivergence, match="Turn 1"):
        env.restore(dataclasses.replace(snapshot, actions=("inventory",)))
    env.reset(task_of(next(other for other in generated if other.id != game.id)))
    with pytest.raises(EnvironmentFault, match="snapshot is of"):
        env.restore(snapshot)


@pytest.mark.reference
@pytest.mark.usefixtures("stock_engine")
def test_the_process_is_left_as_it_was(game: Game):
    kept = sys.argv, list(sys.argv), sys.stdout, os.environ.get("ALFWORLD_DATA")
    play_stock(game, ["look"])
    assert (sys.argv, list(sys.argv), sys.stdout, os.environ.get("ALFWORLD_DATA")) == kept
    with pytest.raises(GameError, match="cannot load"):
        play_stock(dataclasses.replace(game, pddl_problem="(define (problem x"), [])
    assert (sys.argv, list(sys.argv), sys.stdout, os.environ.get("ALFWORLD_DATA")) == kept


@pytest.mark.reference
@pytest.mark.usefixtures("stock_engine")
def test_what_the_stock_engine_cannot_do_is_refused(game: Game):
    with pytest.raises(ConfigError, match="wording 'put'"):
        StockEnv("put")
    env = StockEnv()
    with pytest.raises(EnvironmentFault, match="No episode"):
        env.step("look")
    env.reset(task_of(game))
    with pytest.raises(EnvironmentFault, match="no planner"):
        env.plan()
    evil = dataclasses.replace(game, task_sentence="look at {__import__('os').getcwd()}.")
    with pytest.raises(GameError, match="plain text"):
        env.reset(task_of(evil))


@pytest.mark.reference
@pytest.mark.usefixtures("stock_engine")
def test_mirrored_engine_plays_forks_and_shows_the_oracle_its_state(game: Game):
    actions, native = play_native(game, "random", 8, 9)
    env, twin = MirroredStockEnv("move"), NativeEnv()
    assert env.spec.fork == "replay"
    assert [env.reset(task_of(game), 0), *map(env.step, actions[:4])] == native[:5]
    kept = env.snapshot()
    assert list(map(env.step, actions[4:])) == native[5:]
    assert env.restore(kept) == native[4]
    native_only_env(twin, game, actions[:4])
    assert (env.dump(), env.state_hash()) == (twin.dump(), twin.state_hash())
    with pytest.raises(EnvironmentFault, match="stored state"):
        env.load(task_of(game), env.dump())


def native_only_env(env: NativeEnv, game: Game, actions) -> None:
    env.reset(task_of(game))
    for action in actions:
        env.step(action)


PROBE = """
import hashlib
from pivotopd.environments.alfworld.contract import play_native
from pivotopd.environments.alfworld.generator import generate_games
from pivotopd.environments.alfworld.stock import play_stock
digest = hashlib.sha256()
for game in generate_games(29, "contract", 3):
    actions, native = play_native(game, "guided", 8, 0)
    digest.update(repr((game, actions, native, play_stock(game, actions))).encode())
print(digest.hexdigest())
"""


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.usefixtures("stock_engine")
def test_no_hash_seed_changes_a_byte_and_standard_output_stays_clean():
    outputs = set()
    for seed in ("0", "1", "random"):
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop()) == 65  # one digest and its line end: the engine printed nothing
