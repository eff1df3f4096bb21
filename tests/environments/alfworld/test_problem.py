"""Reading a game: what is found, what is refused, and that nothing else can happen."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.environments.alfworld.games import load_games
from pivotopd.environments.alfworld.goals import TASK_TYPES, Goal
from pivotopd.environments.alfworld.problem import display_names, goal_holds, parse_problem
from pivotopd.errors import GameError
from tests.environments.alfworld import rooms


def test_numbers_count_down_in_id_order_and_basins_share_a_base() -> None:
    names = display_names(
        [
            "mug_bar_b",
            "mug_bar_a",
            "sink_bar_1_bar_sinkbasin",
            "sink_bar_1",
            "bathtub_bar_0_bar_bathtubbasin",
            "agent1",
        ]
    )
    assert names == {
        "mug_bar_a": "mug 2",
        "mug_bar_b": "mug 1",
        "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
        "bathtub_bar_0_bar_bathtubbasin": "bathtubbasin 1",
        "agent1": "agent1 ",
    }


def test_the_kitchen_is_read_as_written() -> None:
    world = rooms.kitchen()
    assert world.receptacles == tuple(sorted(r.lower() for r in rooms.RECEPTACLES))
    assert world.at["loc_bar_4"] == ("shelf_bar_1", "shelf_bar_2")
    assert world.names["loc_bar_9"] == "loc 1"  # seven location ids; the start is the last
    assert world.names["loc_bar_1"] == "loc 7"
    assert world.inside_object == {"bowl_bar_1": ("egg_bar_1",)}
    assert world.goal == Goal("pick_and_place_simple", "appletype", "shelftype", None)
    assert world.goal_objects == {"apple_bar_1", "apple_bar_2"}
    assert world.start.location == "loc_bar_9"
    assert world.start.held is None
    assert world.start.cool == {"apple_bar_2"}
    assert ("mug_bar_2", "fridge_bar_1") in world.start.inside
    assert pickle.loads(pickle.dumps(world.start)) == world.start
    assert hash(pickle.loads(pickle.dumps(world.start))) == hash(world.start)


@pytest.mark.parametrize(
    ("text", "task_type", "target", "lamp"),
    [
        (rooms.APPLE_ON_SHELF, "pick_and_place_simple", "shelftype", None),
        (rooms.CLEAN_APPLE, "pick_clean_then_place_in_recep", "shelftype", None),
        (rooms.HEAT_MUG, "pick_heat_then_place_in_recep", "fridgetype", None),
        (rooms.COOL_APPLE, "pick_cool_then_place_in_recep", "shelftype", None),
        (rooms.TWO_MUGS, "pick_two_obj_and_place", "cabinettype", None),
        (rooms.MUG_UNDER_LAMP, "look_at_obj_in_light", None, "desklamptype"),
    ],
)
def test_the_six_goals(text: str, task_type: str, target: str | None, lamp: str | None) -> None:
    goal = rooms.kitchen(text).goal
    assert (goal.task_type, goal.receptacle_type, goal.lamp_type) == (task_type, target, lamp)
    assert goal.count == (2 if task_type == "pick_two_obj_and_place" else 1)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (rooms.problem() + ")", "goes on after"),
        (rooms.problem()[:-1], "brackets"),
        ("", "brackets"),
        (")(", "brackets"),
        (rooms.problem().replace("(:domain alfred)", "(:domain chess)"), "chess"),
        (rooms.problem().replace("(:domain alfred)", ""), "sections"),
        (rooms.problem().replace("(:goal", "(:metric minimize) (:goal"), ":metric"),
        (rooms.problem().replace("define", "refine"), "sections"),
        (rooms.problem("(and (forall (?o - object) (holds ?o)))"), "six"),
        (rooms.problem(rooms.APPLE_ON_SHELF.replace("AppleType", "(AppleType)")), "six"),
        (rooms.problem(rooms.TWO_MUGS.replace("MugType", "EggType", 1)), "six"),
        (rooms.problem(facts=[f for f in rooms.KITCHEN if not f.startswith("atLocation")]), "one agent"),
        (rooms.problem(facts=[*rooms.KITCHEN, "atLocation agent2 loc_bar_1"]), "one agent"),
        (rooms.problem(facts=[*rooms.KITCHEN, "holds agent1 Egg_bar_1"]), "holds at the start"),
        (rooms.problem(facts=[*rooms.KITCHEN, "flies Egg_bar_1"]), "flies"),
        (rooms.problem(facts=[*rooms.KITCHEN, "openable Egg_bar_1 Egg_bar_2"]), "openable"),
        (rooms.problem(facts=[*rooms.KITCHEN, "= (distance a b) 3"]), "plain facts"),
        (rooms.problem(facts=[*rooms.KITCHEN, "objectType Egg_bar_1 MugType"]), "two values"),
        (rooms.problem(facts=[*rooms.KITCHEN, "inReceptacle Egg_bar_1 Desk_bar_1"]), "lacks a location"),
        (rooms.problem(facts=[*rooms.KITCHEN, "objectAtLocation Shelf_bar_1 loc_bar_1"]), "at once"),
        (rooms.problem(facts=[*rooms.KITCHEN, "objectType Egg MugType"]), "kind_bar_rest"),
        (rooms.problem().replace("  Egg_bar_1 - object\n", ""), "not in :objects"),
        (rooms.problem().replace("Egg_bar_1", "Egg{bar_1"), "character"),
        (rooms.problem(rooms.PLACE.format("Pizza", "Shelf")), "ever reach"),
        (rooms.problem(rooms.PLACE.format("Apple", "Sofa")), "ever reach"),
        (rooms.problem(rooms.PLACE.format("Egg", "Shelf")), "ever reach"),  # an egg fits nowhere
        (rooms.problem(rooms.LOOK.format("Mug", "FloorLamp")), "lamp"),
        (rooms.problem(rooms.TWO.format("Apple", "Shelf")), "ever reach"),  # one of two apples lies nowhere
    ],
)  # fmt: skip
def test_a_broken_game_is_named(broken: str, told: str) -> None:
    with pytest.raises(GameError, match=told) as caught:
        parse_problem(broken, "put it.", "games/17")
    assert caught.value.where == "games/17"
    assert caught.value.mend


@pytest.mark.parametrize("sign", [*"#{}[]|;<>\"", "\n", "\x00", "\u2028"])  # fmt: skip
def test_a_sentence_with_markup_is_refused(sign: str) -> None:
    with pytest.raises(GameError, match="plain text"):
        parse_problem(rooms.problem(), f"put a mug {sign} down.", "here")


@pytest.mark.parametrize("sentence", ["", "  ", " put it.", "put it. "])
def test_an_empty_sentence_is_refused(sentence: str) -> None:
    with pytest.raises(GameError, match="blanks"):
        parse_problem(rooms.problem(), sentence, "here")


def test_comments_case_and_repeated_facts_do_not_matter() -> None:
    plain = rooms.kitchen()
    loud = parse_problem(
        rooms.problem(facts=rooms.KITCHEN * 2).upper().replace("\n", " ; a ) comment (\n"), "do it.", "test"
    )
    assert loud.start == plain.start
    assert loud.names == plain.names
    assert loud.goal == plain.goal


@given(st.text(max_size=200))
def test_any_text_is_refused_by_a_game_error(text: str) -> None:
    with pytest.raises(GameError):
        parse_problem(text, "put it.", "here")


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_problem_is_read_or_refused(data: st.DataObject) -> None:
    text = rooms.problem(
        data.draw(st.sampled_from([rooms.TWO_MUGS, rooms.MUG_UNDER_LAMP, rooms.CLEAN_APPLE]))
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 40))
        piece = data.draw(
            st.sampled_from(["", "(", ")", " ", "((((", "())", ":", "?", "x", "(:init)", "\u0130", "-"])
        )
        text = text[:at] + piece + text[at + cut :]
    try:
        world = parse_problem(text, "put it.", "here")
    except GameError:
        pass
    else:
        assert isinstance(goal_holds(world, world.start), bool)


def test_deep_brackets_do_not_overflow() -> None:
    for text in ("(" * 100_000, "(" * 100_000 + ")" * 100_000):
        with pytest.raises(GameError):
            parse_problem(text, "put it.", "here")


def test_all_official_games_are_read(shared_data) -> None:
    games = load_games(shared_data / "alfworld")
    assert len(games) == 3693
    cool = 0
    for game in games:
        world = parse_problem(game.pddl_problem, game.task_sentence, game.id)
        assert world.goal.task_type == game.task_type
        assert game.task_type in TASK_TYPES
        assert not goal_holds(world, world.start)
        assert world.start.location not in world.at
        start = world.start
        assert set(start[4:7]) | set(start[8:]) == {frozenset()}  # all but cool
        cool += bool(start.cool)
    assert cool == 308
