"""Small rooms written by hand, for tests that know every answer."""

from __future__ import annotations

from collections.abc import Iterable

from pivotopd.environments.alfworld.engine import Engine, WordingStyle
from pivotopd.environments.alfworld.games import Game
from pivotopd.environments.alfworld.problem import State, World, parse_problem

PLACE = """(and (exists (?r - receptacle) (exists (?o - object) (and
  (inReceptacle ?o ?r) (objectType ?o {0}Type) (receptacleType ?r {1}Type)))))"""
TOOL = """(and (exists (?r - receptacle) (exists (?o - object) (and ({2}able ?o) (objectType ?o {0}Type)
  (receptacleType ?r {1}Type) (is{3} ?o) (inReceptacle ?o ?r)))))"""
TWO = """(and (exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 {0}Type)
  (receptacleType ?r {1}Type) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2))
  (objectType ?o2 {0}Type) (receptacleType ?r {1}Type) (inReceptacle ?o2 ?r)))))))"""
LOOK = """(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot {1}Type)
  (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
  (exists (?o - object ?a - agent) (and (objectType ?o {0}Type) (holds ?a ?o))))"""

HEAT_MUG = TOOL.format("Mug", "Fridge", "heat", "Hot")
CLEAN_APPLE = TOOL.format("Apple", "Shelf", "clean", "Clean")
COOL_APPLE = TOOL.format("Apple", "Shelf", "cool", "Cool")
TWO_MUGS = TWO.format("Mug", "Cabinet")
MUG_UNDER_LAMP = LOOK.format("Mug", "DeskLamp")
APPLE_ON_SHELF = PLACE.format("Apple", "Shelf")

RECEPTACLES = {
    "Fridge_bar_1": ("Fridge", 1),
    "Microwave_bar_1": ("Microwave", 2),
    "Sink_bar_1_bar_SinkBasin": ("SinkBasin", 3),
    "Shelf_bar_1": ("Shelf", 4),
    "Shelf_bar_2": ("Shelf", 4),
    "Cabinet_bar_1": ("Cabinet", 5),
    "Cabinet_bar_2": ("Cabinet", 6),
}
"""Type and location of each; the shelves share one place, ``Cabinet_bar_2`` cannot be opened."""

OBJECTS = {
    "Apple_bar_1": ("Apple", ["Fridge_bar_1"]),
    "Apple_bar_2": ("Apple", []),
    "Bowl_bar_1": ("Bowl", ["Sink_bar_1_bar_SinkBasin"]),
    "DeskLamp_bar_1": ("DeskLamp", ["Shelf_bar_2", "Cabinet_bar_2"]),
    "Egg_bar_1": ("Egg", ["Sink_bar_1_bar_SinkBasin"]),
    "Egg_bar_2": ("Egg", ["Sink_bar_1_bar_SinkBasin"]),
    "Knife_bar_1": ("Knife", ["Cabinet_bar_2"]),
    "Mug_bar_1": ("Mug", ["Shelf_bar_1"]),
    "Mug_bar_2": ("Mug", ["Shelf_bar_1", "Fridge_bar_1"]),
    "Mug_bar_3": ("Mug", ["Cabinet_bar_1"]),
}
"""Type and receptacles of each. ``Mug_bar_2`` lies in two at once, ``Apple_bar_2`` in none."""

KITCHEN = [
    "openable Fridge_bar_1", "openable Microwave_bar_1", "openable Cabinet_bar_1",
    "toggleable DeskLamp_bar_1", "isReceptacleObject Bowl_bar_1", "inReceptacleObject Egg_bar_1 Bowl_bar_1",
    *(f"pickupable {o}" for o in OBJECTS if not o.startswith("Desk")),
    *(f"{able} {o}" for able in ("cleanable", "heatable", "coolable")
      for o in OBJECTS if o.startswith(("Apple", "Mug", "Bowl"))),
    "sliceable Apple_bar_1", "sliceable Apple_bar_2",
    *(f"canContain {r}Type {o}Type" for r in ("Fridge", "Shelf", "Cabinet", "SinkBasin", "Microwave")
      for o in ("Apple", "Mug", "Bowl", "Knife")),
    "atLocation agent1 loc_bar_9", "objectAtLocation Apple_bar_2 loc_bar_1", "isCool Apple_bar_2",
    *(f"receptacleType {r} {kind}Type" for r, (kind, _) in RECEPTACLES.items()),
    *(f"receptacleAtLocation {r} loc_bar_{at}" for r, (_, at) in RECEPTACLES.items()),
    *(f"objectType {o} {kind}Type" for o, (kind, _) in OBJECTS.items()),
    *(f"inReceptacle {o} {r}" for o, (_, places) in OBJECTS.items() for r in places),
    *(f"objectAtLocation {o} loc_bar_{RECEPTACLES[r][1]}"
      for o, (_, places) in OBJECTS.items() for r in places),
]  # fmt: skip


def problem(goal: str = APPLE_ON_SHELF, facts: Iterable[str] = KITCHEN) -> str:
    """Write a problem; everything the facts name is declared."""
    facts = list(facts)
    names = {word for fact in facts for word in fact.split()[1:]}
    declared = "\n".join(f"  {name} - object" for name in sorted(names))
    init = "\n".join(f"  ({fact})" for fact in facts)
    return f"(define (problem p)\n(:domain alfred)\n(:objects\n{declared})\n(:init\n{init})\n(:goal {goal}))"


def kitchen(goal: str = APPLE_ON_SHELF, without: Iterable[str] = (), extra: Iterable[str] = ()) -> World:
    """Return the kitchen as a world, with some facts changed."""
    left_out = set(without)
    assert left_out <= set(KITCHEN)
    facts = [fact for fact in KITCHEN if fact not in left_out] + list(extra)
    return parse_problem(problem(goal, facts), "do it.", "test")


def game(goal: str = APPLE_ON_SHELF, task_type: str = "pick_and_place_simple") -> Game:
    """Return the kitchen as a game."""
    return Game("hand/kitchen/1", "hand", task_type, problem(goal), "do it.", "test")


def play(
    world: World, *commands: str, wording: WordingStyle = "move", start: State | None = None
) -> tuple[State, str]:
    """Play admissible commands; return the last state and feedback."""
    engine, state, text = Engine(world, wording), start or world.start, ""
    for command in commands:
        assert command in engine.admissible(state), (command, engine.admissible(state))
        state, text, valid = engine.apply(state, command)
        assert valid
    return state, text
