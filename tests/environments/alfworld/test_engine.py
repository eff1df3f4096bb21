"""Every trap of the game's rules, on a kitchen whose answers are known by hand."""

from __future__ import annotations

import pytest

from pivotopd.environments.alfworld import describe
from pivotopd.environments.alfworld.engine import Engine
from pivotopd.environments.alfworld.native import admissible, apply, reset_text, state_hash
from pivotopd.environments.alfworld.problem import goal_holds
from tests.environments.alfworld import rooms
from tests.environments.alfworld.rooms import kitchen, play

ALL_GO = [
    "go to cabinet 1", "go to cabinet 2", "go to fridge 1", "go to microwave 1", "go to shelf 1",
    "go to shelf 2", "go to sinkbasin 1",
]  # fmt: skip


def refused(world, state, command: str) -> None:
    """Assert that a command is not admissible and changes nothing."""
    assert command not in admissible(world, state)
    assert apply(world, state, command) == (state, "Nothing happens.", False)


def test_reset_lists_all_receptacles_but_look_there_lists_none() -> None:
    world = kitchen()
    assert reset_text(world) == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you,"
        " you see a cabinet 2, a cabinet 1, a fridge 1, a microwave 1, a shelf 2, a shelf 1,"
        " and a sinkbasin 1.\n\nYour task is to: do it."
    )
    assert play(world, "look")[1] == (
        "You are in the middle of a room. Looking quickly around you, you see nothing."
    )
    assert admissible(world, world.start) == (*ALL_GO, "help", "inventory", "look")


def test_an_agent_that_starts_at_a_receptacle_faces_it() -> None:
    world = kitchen(without=["atLocation agent1 loc_bar_9"], extra=["atLocation agent1 loc_bar_4"])
    assert "\n\nYou are facing the shelf 2, and shelf 1. Next to it, you see nothing.\n\n" in reset_text(
        world
    )


def test_the_admissible_list_is_sorted_as_plain_strings() -> None:
    state, _ = play(world := kitchen(), "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1")
    assert admissible(world, state) == (
        "close fridge 1", "cool apple 2 with fridge 1", "examine apple 2", "examine fridge 1",
        "go to cabinet 1", "go to cabinet 2", "go to microwave 1", "go to shelf 1", "go to shelf 2",
        "go to sinkbasin 1", "help", "inventory", "look", "move apple 2 to fridge 1",
    )  # fmt: skip


def test_openness_is_of_the_receptacle_not_of_its_class() -> None:
    world = kitchen()
    assert play(world, "go to cabinet 1")[1] == (
        "You arrive at cabinet 1. On the cabinet 1, you see a desklamp 1, and a knife 1."
    )
    state, text = play(world, "go to cabinet 2")
    assert text == "You arrive at cabinet 2. The cabinet 2 is closed."
    refused(world, state, "take mug 1 from cabinet 2")
    refused(world, state, "close cabinet 2")
    assert play(world, "examine cabinet 2", start=state)[1] == "The cabinet 2 is closed."
    state, text = play(world, "open cabinet 2", start=state)
    assert text == "You open the cabinet 2. The cabinet 2 is open. In it, you see a mug 1."
    refused(world, state, "open cabinet 2")
    state, text = play(world, "close cabinet 2", start=state)
    assert text == "You close the cabinet 2."
    refused(world, play(world, "go to cabinet 1")[0], "open cabinet 1")


def test_lists_have_a_comma_also_with_two_and_the_article_a() -> None:
    assert describe.joined([]) == "nothing"
    assert describe.joined(["a mug 1"]) == "a mug 1"
    assert describe.joined(["a mug 2", "a mug 1"]) == "a mug 2, and a mug 1"
    assert describe.joined(["a", "b", "c"]) == "a, b, and c"
    assert play(kitchen(), "go to sinkbasin 1")[1] == (
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see a bowl 1, a egg 2, and a egg 1."
    )


def test_no_way_leads_to_the_own_place_or_a_neighbour_at_it() -> None:
    world = kitchen()
    state, _ = play(world, "go to shelf 1")
    refused(world, state, "go to shelf 1")
    refused(world, state, "go to shelf 2")
    assert [c for c in admissible(world, state) if c.startswith("examine")] == [
        "examine shelf 1",
        "examine shelf 2",
    ]


def test_positions_are_sets_and_take_removes_one_pair() -> None:
    world = kitchen()
    state, _ = play(world, "go to shelf 2", "take mug 2 from shelf 2", "go to fridge 1", "open fridge 1")
    assert state.held == "mug_bar_2"
    assert play(world, "examine fridge 1", start=state)[1] == (
        "The fridge 1 is open. In it, you see a apple 2, and a mug 2."
    )
    refused(world, state, "take mug 2 from fridge 1")  # the hand is full
    state, _ = play(world, "go to shelf 1", "move mug 2 to shelf 1", start=state)
    assert {r for o, r in state.inside if o == "mug_bar_2"} == {"fridge_bar_1", "shelf_bar_2"}


def test_look_depends_on_history() -> None:
    world = kitchen()
    nothing = "You are facing the shelf 2, and shelf 1. Next to it, you see nothing."
    before, text = play(world, "go to shelf 1", "look")
    assert text == nothing
    state, text = play(world, "take mug 3 from shelf 2", "look", start=before)
    assert text == nothing
    state, text = play(world, "move mug 3 to shelf 1", "look", start=state)
    assert text == nothing.replace("nothing", "a mug 3")
    after, text = play(world, "take mug 3 from shelf 1", "move mug 3 to shelf 2", "look", start=state)
    assert text == nothing.replace("nothing", "a mug 3")
    assert after._replace(removed=frozenset()) == before
    assert after != before
    assert state_hash(after) != state_hash(before)
    # Taken from both shelves and put down on neither: listed twice once it lies here by another pair.
    both = after._replace(removed=frozenset({("mug_bar_1", "shelf_bar_1"), ("mug_bar_1", "shelf_bar_2")}))
    assert describe.look(world, both) == nothing.replace("nothing", "a mug 3, and a mug 3")


def test_putting_back_clears_the_history_of_that_pair() -> None:
    world = kitchen()
    before, _ = play(world, "go to shelf 1")
    state, _ = play(world, "take mug 3 from shelf 2", "move mug 3 to shelf 2", start=before)
    assert state == before


def test_only_the_held_object_can_be_examined() -> None:
    world = kitchen()
    state, _ = play(world, "go to cabinet 1")
    refused(world, state, "examine knife 1")
    refused(world, state, "examine desklamp 1")
    state, text = play(world, "take knife 1 from cabinet 1", "examine knife 1", start=state)
    assert text == "There's nothing special about knife 1."


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("clean hot sliced", "a hot and clean sliced apple 2"),
        ("clean cool sliced", "a cool and clean sliced apple 2"),
        ("clean sliced", "a clean sliced apple 2"),
        ("hot sliced", "a hot sliced apple 2"),
        ("cool sliced", "a cool sliced apple 2"),
        ("clean hot", "a hot and clean apple 2"),
        ("clean cool", "a cool and clean apple 2"),
        ("hot", "a hot apple 2"),
        ("clean", "a clean apple 2"),
        ("cool", "a cold apple 2"),
        ("sliced", "a sliced apple 2"),
        ("hot cool", "a hot apple 2"),
        ("hot cool clean sliced", "a hot and clean sliced apple 2"),
    ],
)
def test_examine_names_the_flags_and_cold_stands_alone(flags: str, text: str) -> None:
    world = kitchen()
    changes = dict.fromkeys(flags.split(), frozenset({"apple_bar_1"}))
    state = world.start._replace(held="apple_bar_1", **changes)
    assert apply(world, state, "examine apple 2").feedback == f"This is {text}."


def test_an_object_that_holds_others_hides_its_flags() -> None:
    world = kitchen()
    state, text = play(
        world, "go to sinkbasin 1", "take bowl 1 from sinkbasin 1", "clean bowl 1 with sinkbasin 1",
        "examine bowl 1",
    )  # fmt: skip
    assert text == "This is a normal bowl 1. In it, you see a egg 2."
    assert state.clean == {"bowl_bar_1"}
    assert ("egg_bar_1", "sink_bar_1_bar_sinkbasin") in state.inside


def test_a_lamp_in_the_hand_is_on() -> None:
    world = kitchen()
    state = world.start._replace(held="desklamp_bar_1", toggled=frozenset({"desklamp_bar_1"}))
    assert apply(world, state, "examine desklamp 1").feedback == "This desklamp 1 is on."


def test_tools_need_neither_open_nor_empty_and_repeat() -> None:
    world = kitchen()
    heat = "heat mug 3 with microwave 1"
    state, text = play(world, "go to shelf 1", "take mug 3 from shelf 2", "go to microwave 1", heat)
    assert text == "You heat the mug 3 using the microwave 1."
    assert (state.hot, state.held) == ({"mug_bar_1"}, "mug_bar_1")
    assert play(world, heat, start=state) == (state, text)
    cooled, text = play(world, "go to fridge 1", "cool mug 3 with fridge 1", start=state)
    assert text == "You cool the mug 3 using the fridge 1."
    assert (cooled.hot, cooled.cool) == (frozenset(), {"mug_bar_1", "apple_bar_2"})
    again, _ = play(world, "go to microwave 1", heat, start=cooled)
    assert (again.hot, again.cool) == ({"mug_bar_1"}, {"apple_bar_2"})
    refused(world, again, "cool mug 3 with microwave 1")


def test_a_bathtub_basin_does_not_clean() -> None:
    extra = ["receptacleType Bathtub_bar_1_bar_BathtubBasin BathtubBasinType",
             "receptacleAtLocation Bathtub_bar_1_bar_BathtubBasin loc_bar_7"]  # fmt: skip
    world = kitchen(extra=extra)
    state, _ = play(world, "go to shelf 1", "take mug 3 from shelf 2", "go to bathtubbasin 1")
    refused(world, state, "clean mug 3 with bathtubbasin 1")


def test_a_lamp_is_used_at_either_place_from_a_closed_receptacle_and_never_off() -> None:
    world = kitchen(extra=["openable Shelf_bar_2"])
    state, text = play(world, "go to shelf 1", "use desklamp 1")
    assert text == "You turn on the desklamp 1."
    assert state.toggled == {"desklamp_bar_1"}
    assert play(world, "use desklamp 1", start=state) == (state, text)
    play(world, "go to cabinet 1", "use desklamp 1", start=state)
    refused(world, world.start, "use desklamp 1")
    nowhere = state._replace(inside=frozenset(p for p in state.inside if p[0] != "desklamp_bar_1"))
    refused(world, nowhere, "use desklamp 1")


def test_one_command_for_a_lamp_in_two_receptacles_of_one_place() -> None:
    world = kitchen(extra=["inReceptacle DeskLamp_bar_1 Shelf_bar_1"])
    state, _ = play(world, "go to shelf 1")
    assert admissible(world, state).count("use desklamp 1") == 1


def test_slicing_goes_by_the_recorded_location() -> None:
    world = kitchen()
    state, _ = play(world, "go to cabinet 1", "take knife 1 from cabinet 1", "go to fridge 1")
    slices = [c for c in admissible(world, state) if c.startswith("slice")]
    assert slices == [
        "slice apple 1 with knife 1",
        "slice apple 2 with knife 1",
    ]  # nowhere; in a closed fridge
    state, text = play(world, slices[1], slices[1], start=state)
    assert text == "You sliced the apple 2 with the knife 1."
    assert state.sliced == {"apple_bar_1"}
    refused(world, state, "slice mug 2 with knife 1")
    refused(world, play(world, "go to microwave 1", start=state)[0], slices[1])


def test_a_stale_location_stays_and_permits_slicing() -> None:
    world = kitchen(extra=["objectAtLocation Apple_bar_1 loc_bar_5"])
    state, _ = play(
        world, "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "move apple 2 to fridge 1",
        "take apple 2 from fridge 1", "go to shelf 1", "move apple 2 to shelf 1", "go to cabinet 1",
        "take knife 1 from cabinet 1", "go to cabinet 2", "slice apple 2 with knife 1",
    )  # fmt: skip
    assert {place for o, place in state.object_at if o == "apple_bar_1"} == {"loc_bar_4", "loc_bar_5"}


def test_things_go_only_where_their_type_fits() -> None:
    world = kitchen()
    state, _ = play(world, "go to sinkbasin 1", "take egg 2 from sinkbasin 1")
    refused(world, state, "move egg 2 to sinkbasin 1")
    assert not [c for c in admissible(world, state) if c.startswith(("move", "take"))]


@pytest.mark.parametrize(
    "command",
    [
        "", " ", "Look", "LOOK", "go to  shelf 1", "go to shelf", "go to shelf 3", "Go to shelf 1",
        "go shelf 1", "fly", "go to loc 1", "take", "take mug 3 from shelf 2", "examine", "open", "use",
        "slice", "clean x", "put mug 3 in/on shelf 1", "look around", "help me", "inventory\nlook", "heat",
        "go to shelf 1\n\nlook", "move mug 1 to shelf 1",
    ],
)  # fmt: skip
def test_commands_match_exactly(command: str) -> None:
    world = kitchen()
    refused(world, world.start, command)


def test_blanks_around_a_command_do_not_matter() -> None:
    world = kitchen()
    assert apply(world, world.start, "  go to shelf 1\n") == apply(world, world.start, "go to shelf 1")


def test_inventory() -> None:
    world = kitchen()
    assert play(world, "inventory")[1] == "You are not carrying anything."
    assert (
        play(world, "go to shelf 1", "take mug 3 from shelf 2", "inventory")[1]
        == "You are carrying: a mug 3."
    )


def test_help_has_lost_its_first_newline_and_keeps_its_last() -> None:
    text = play(kitchen(), "help")[1]
    assert text.startswith("Available commands:\n  look:")
    assert text.endswith("slice an object using a sharp object\n")
    columns = {
        line.split(":")[0].strip().split()[0]: len(line.split(":")[0]) for line in text.splitlines()[1:]
    }
    assert len(columns) == 13
    for line in text.splitlines()[1:]:
        described = line[line.index(":") + 1 :]
        at = len(line) - len(described.lstrip())
        assert at == 36 or line.startswith("  move (object) to (receptacle):  place")


def test_the_put_wording() -> None:
    world = kitchen()
    engine = Engine(world, "put")
    assert "help" not in engine.admissible(world.start)
    assert not engine.apply(world.start, "help").valid
    state, text = play(world, "go to shelf 2", wording="put")
    assert text == "You arrive at loc 4. On the shelf 2, you see a mug 3, and a mug 2."
    state, _ = play(world, "take mug 3 from shelf 2", wording="put", start=state)
    assert not engine.apply(state, "move mug 3 to shelf 1").valid
    state, text = play(world, "put mug 3 in/on shelf 1", wording="put", start=state)
    assert text == "You put the mug 3 in/on the shelf 1."
    assert ("mug_bar_1", "shelf_bar_2") in state.inside


def test_the_sink_type_cleans_only_in_the_put_wording() -> None:
    extra = ["receptacleType Sink_bar_2 SinkType", "receptacleAtLocation Sink_bar_2 loc_bar_4"]
    world = kitchen(extra=extra)
    state, _ = play(world, "go to shelf 1", "take mug 3 from shelf 2")
    refused(world, state, "clean mug 3 with sink 1")
    state, text = play(world, "clean mug 3 with sink 1", wording="put", start=state)
    assert text == "You clean the mug 3 using the sink 1."


# ------------------------------------------------------------------ goals


def test_heating_a_mug_that_still_lies_in_the_target_wins_at_once() -> None:
    world = kitchen(rooms.HEAT_MUG)  # mug 2 lies on the shelf and in the fridge
    state, _ = play(world, "go to shelf 1", "take mug 2 from shelf 2", "go to microwave 1")
    assert not goal_holds(world, state)
    state, _ = play(world, "heat mug 2 with microwave 1", start=state)
    assert goal_holds(world, state)


def test_winning_is_not_latched() -> None:
    world = kitchen()
    state, _ = play(world, "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "go to shelf 1",
                    "move apple 2 to shelf 1")  # fmt: skip
    assert goal_holds(world, state)
    assert not goal_holds(world, play(world, "take apple 2 from shelf 1", start=state)[0])


def test_cool_counts_when_it_was_cool_from_the_start() -> None:
    world = kitchen(rooms.COOL_APPLE, extra=["isCool Apple_bar_1"])
    state, _ = play(world, "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "go to shelf 1",
                    "move apple 2 to shelf 1")  # fmt: skip
    assert goal_holds(world, state)
    assert not goal_holds(kitchen(rooms.COOL_APPLE), state._replace(cool=frozenset()))


def test_two_different_objects_in_one_receptacle() -> None:
    world = kitchen(rooms.TWO_MUGS)
    start = world.start
    one = start.inside | {("mug_bar_1", "cabinet_bar_2")}  # the third mug lies in the other cabinet
    assert not goal_holds(world, start._replace(inside=one))
    same_mug_twice = frozenset({("mug_bar_1", "cabinet_bar_1"), ("mug_bar_1", "cabinet_bar_2")})
    assert not goal_holds(world, start._replace(inside=same_mug_twice))
    assert goal_holds(world, start._replace(inside=one | {("mug_bar_2", "cabinet_bar_2")}))


def test_light_and_object_in_either_order_at_the_lamp() -> None:
    world = kitchen(rooms.MUG_UNDER_LAMP)
    lamp_first, _ = play(world, "go to shelf 1", "use desklamp 1")
    assert not goal_holds(world, lamp_first)
    state, _ = play(world, "take mug 3 from shelf 2", start=lamp_first)
    assert goal_holds(world, state)
    away, _ = play(world, "go to fridge 1", start=state)
    assert not goal_holds(world, away)
    other_place, _ = play(world, "go to cabinet 1", start=away)  # the lamp is listed there, too
    assert goal_holds(world, other_place)
    state, _ = play(world, "go to cabinet 1", "use desklamp 1", "take knife 1 from cabinet 1")
    assert not goal_holds(world, state)
