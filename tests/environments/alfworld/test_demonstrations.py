"""Demonstrations: the gap without a hint, obedience with one, the same rows from the same seed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pivotopd.environments.alfworld.compact import place_here
from pivotopd.environments.alfworld.demonstrations import Demonstration, Noise, demonstrations
from pivotopd.environments.alfworld.demonstrator import Demonstrator, read
from pivotopd.environments.alfworld.engine import Engine
from pivotopd.environments.alfworld.games import Game
from pivotopd.environments.alfworld.generator import PLAIN, PLAIN_TASK_TYPES, generate_game, generate_games
from pivotopd.environments.alfworld.problem import goal_holds, parse_problem
from pivotopd.environments.alfworld.vocabulary import RECEPTACLES, kind_of
from pivotopd.environments.alfworld.wording import make_wording
from pivotopd.environments.base import View
from pivotopd.errors import ConfigError

WORDING = make_wording("compact")
AGENT = Demonstrator("apple", "fridge", "clean", "sinkbasin", "tomato")
PLACES = ("go to countertop 1", "go to fridge 1", "go to shelf 1")


@pytest.fixture(scope="module")
def games() -> tuple[Game, ...]:
    return generate_games(3, "train", 60, PLAIN_TASK_TYPES, PLAIN)


@pytest.fixture(scope="module")
def rows(games: tuple[Game, ...]) -> list[Demonstration]:
    return list(demonstrations(games, 5, hinted_share=0.4, history=3, max_turns=20))


def test_the_same_seed_gives_the_same_rows(games: tuple[Game, ...], rows: list[Demonstration]) -> None:
    assert list(demonstrations(games, 5, hinted_share=0.4, history=3, max_turns=20)) == rows
    assert list(demonstrations(games, 6, hinted_share=0.4, history=3, max_turns=20)) != rows


def test_rows_of_a_game_do_not_depend_on_the_other_games(
    games: tuple[Game, ...], rows: list[Demonstration]
) -> None:
    alone = list(demonstrations(games[:1], 5, hinted_share=0.4, history=3, max_turns=20))
    assert rows[: len(alone)] == alone


def test_every_response_is_a_valid_reply_with_an_admissible_action(rows: list[Demonstration]) -> None:
    for row in rows:
        reply = WORDING.parse(row.response)
        assert reply.valid
        assert reply.committed
        assert reply.action in (row.view.admissible or ())
        assert not WORDING.leaks(row.response)


def test_hinted_rows_obey_and_only_they_have_a_hint(rows: list[Demonstration]) -> None:
    for row in rows:
        assert row.hinted == (row.view.hint is not None)
        if row.hinted:
            assert WORDING.parse(row.response).action == row.view.hint
    share = sum(row.hinted for row in rows) / len(rows)
    assert 0.3 < share < 0.5


def test_thoughts_do_not_tell_whether_there_was_a_hint(rows: list[Demonstration]) -> None:
    plain = {WORDING.parse(row.response).thought for row in rows if not row.hinted}
    hinted = {WORDING.parse(row.response).thought for row in rows if row.hinted}
    words = [{word for thought in thoughts for word in thought.split()} for thoughts in (plain, hinted)]
    assert {"want", "; hold".strip("; "), "instead;", "next"} <= words[0] & words[1]


def test_plain_rows_never_put_a_wrong_object_down(rows: list[Demonstration]) -> None:
    wrong = 0
    for row in rows:
        held = [
            action.removeprefix("examine ")
            for action in row.view.admissible or ()
            if action.startswith("examine ") and kind_of(action.removeprefix("examine ")) not in RECEPTACLES
        ]
        if row.hinted or not held or f"want {kind_of(held[0])};" in row.response:
            continue
        wrong += 1
        assert f"hold {held[0]} instead" in row.response
        assert WORDING.parse(row.response).action.startswith("go to ")
    assert wrong > 20


def test_plain_rows_take_the_lookalike_wherever_it_is_seen_without_the_target(
    rows: list[Demonstration],
) -> None:
    traps = [row for row in rows if not row.hinted and "see" in row.response and "instead" in row.response]
    assert len(traps) > 20
    assert all(WORDING.parse(row.response).action.startswith("take ") for row in traps)


def _now(view: View) -> tuple[str, str]:
    now = read(view, AGENT.tool)
    return AGENT.gap_action(now), AGENT.informed_action(now)


def _view(observation: str, *others: str, history: tuple[tuple[str, str], ...] = ()) -> View:
    return View("put a clean apple in fridge.", history, len(history), observation, (*PLACES, *others))


def test_the_gap_and_what_would_close_it() -> None:
    trap = _view(
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see a tomato 1.",
        "examine sinkbasin 1", "take tomato 1 from sinkbasin 1",
    )  # fmt: skip
    assert _now(trap) == ("take tomato 1 from sinkbasin 1", "go to countertop 1")
    wrong = _view(
        "You pick up the tomato 1 from the sinkbasin 1.",
        "examine sinkbasin 1", "examine tomato 1", "move tomato 1 to sinkbasin 1",
    )  # fmt: skip
    assert _now(wrong) == ("go to countertop 1", "move tomato 1 to sinkbasin 1")
    both = replace(trap, admissible=(*(trap.admissible or ()), "take apple 1 from sinkbasin 1"))
    assert _now(both) == ("take apple 1 from sinkbasin 1", "take apple 1 from sinkbasin 1")


def test_an_object_just_put_down_is_left_alone_for_two_turns() -> None:
    down = ("You pick up the tomato 1 from the shelf 1.", "move tomato 1 to shelf 1")
    stay = ("You move the tomato 1 to the shelf 1.", "look")
    seen = "You are facing the shelf 1. Next to it, you see nothing."
    actions = ("examine shelf 1", "take tomato 1 from shelf 1")
    assert _now(_view(seen, *actions, history=(down, stay)))[0].startswith("go to ")
    assert _now(_view(seen, *actions, history=(down, stay, stay)))[0] == "take tomato 1 from shelf 1"


def test_only_the_informed_agent_goes_back_to_a_target_that_the_window_showed() -> None:
    shown = ("You arrive at shelf 1. On the shelf 1, you see an egg 1, and a apple 2.", "go to sinkbasin 1")
    empty = _view(
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
        "examine sinkbasin 1",
        history=(shown,),
    )
    assert _now(empty) == ("go to countertop 1", "go to shelf 1")
    assert _now(replace(empty, history=())) == ("go to countertop 1", "go to countertop 1")


def test_the_tool_comes_before_the_place() -> None:
    got = _view("You pick up the apple 1 from the shelf 1.", "examine shelf 1", "examine apple 1")
    assert place_here(got.admissible or ()) == "shelf 1"
    assert (
        _now(replace(got, admissible=(*PLACES, "go to sinkbasin 2", "examine apple 1")))[0]
        == "go to sinkbasin 2"
    )
    did = replace(got, observation="You clean the apple 1 using the sinkbasin 1.")
    assert _now(did)[0] == "go to fridge 1"


@pytest.mark.parametrize("style", ["move", "put"])
def test_without_its_gap_the_agent_wins(style: str) -> None:
    won = 0
    for game in generate_games(9, "train", 24, PLAIN_TASK_TYPES, PLAIN):
        world = parse_problem(game.pddl_problem, game.task_sentence, game.id)
        engine = Engine(world, "move" if style == "move" else "put")
        tool = world.goal.tool
        places = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
        agent = Demonstrator(
            world.goal.object_type.removesuffix("type"),
            (world.goal.receptacle_type or "").removesuffix("type"),
            tool,
            places.get(tool or ""),
            None,
        )
        state, observation, pairs = world.start, engine.reset_text(), []
        for turn in range(30):
            view = View(world.sentence, tuple(pairs[-3:]), turn, observation, engine.admissible(state))
            action = agent.gap_action(read(view, tool))
            pairs.append((observation, action))
            state, observation, valid = engine.apply(state, action)
            assert valid
            if goal_holds(world, state):
                won += 1
                break
    assert won == 24


def test_noise_decides_where_the_player_goes_but_not_what_a_row_shows(games: tuple[Game, ...]) -> None:
    quiet = Noise(epsilon=0.0, mistake=1.0, wander=1.0)
    for row in demonstrations(games[:10], 0, hinted_share=0.0, history=3, max_turns=20, noise=quiet):
        assert not row.hinted
    longer = list(demonstrations(games[:10], 0, hinted_share=0.0, history=3, max_turns=20, noise=quiet))
    saved = replace(quiet, mistake=0.0)
    shorter = list(demonstrations(games[:10], 0, hinted_share=0.0, history=3, max_turns=20, noise=saved))
    assert len(shorter) < len(longer)


def test_the_gap_is_a_share_of_games_and_changes_only_what_plain_rows_show(games: tuple[Game, ...]) -> None:
    def shown(game: Game, gap_share: float) -> list[Demonstration]:
        return list(demonstrations([game], 5, hinted_share=0.4, history=3, max_turns=20, gap_share=gap_share))

    with_gap = [shown(game, 1.0) for game in games]
    without = [shown(game, 0.0) for game in games]
    mixed = [shown(game, 0.5) for game in games]
    for one, other in zip(with_gap, without, strict=True):
        assert [row.view for row in one] == [row.view for row in other]
        assert all(row == twin for row, twin in zip(one, other, strict=True) if row.hinted)
    differing = [index for index, one in enumerate(with_gap) if one != without[index]]
    kinds = [mixed[index] == with_gap[index] for index in differing]
    assert all(mixed[index] in (with_gap[index], without[index]) for index in range(len(games)))
    assert 0.2 < sum(kinds) / len(kinds) < 0.8


def test_a_task_without_demonstrator_is_refused() -> None:
    game = generate_game(1, "look_at_obj_in_light", "bedroom")
    with pytest.raises(ConfigError, match="look_at_obj_in_light"):
        next(demonstrations([game], 0, hinted_share=0.0, history=3, max_turns=20))
