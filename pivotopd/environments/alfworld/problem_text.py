"""A room, drawn up as a PDDL problem of the same form as ALFWorld's own, and its task sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pivotopd.environments.alfworld import rooms

TEMPLATES: Final = {
    "pick_and_place_simple": ("put a {obj} in {recep}.", "put some {obj} on {recep}."),
    "look_at_obj_in_light": ("look at {obj} under the {lamp}.", "examine the {obj} with the {lamp}."),
    "pick_clean_then_place_in_recep": (
        "put a clean {obj} in {recep}.",
        "clean some {obj} and put it in {recep}.",
    ),
    "pick_heat_then_place_in_recep": (
        "put a hot {obj} in {recep}.",
        "heat some {obj} and put it in {recep}.",
    ),
    "pick_cool_then_place_in_recep": (
        "put a cool {obj} in {recep}.",
        "cool some {obj} and put it in {recep}.",
    ),
    "pick_two_obj_and_place": ("put two {obj} in {recep}.", "find two {obj} and put them in {recep}."),
}
"""The two ways in which ALFWorld words each task."""

_ALWAYS_RECEPTACLES: Final = ("SinkBasin", "Microwave", "Fridge")
_ALWAYS_OBJECTS: Final = ("Knife", "ButterKnife")


@dataclass
class Layout:
    """A room under construction; every id is final, every list is in the order of the text.

    Attributes:
        task_type: ALFWorld's task type.
        target: Type of the goal's object.
        goal_place: Type of the goal's receptacle, or of the goal's lamp.
        places: Receptacle id to its type.
        location: Receptacle id to its location's id.
        start: The agent's location.
        openable: Receptacles that can be opened.
        objects: Object id to its type.
        portable: Objects that can be taken.
        inside: Pairs (object, receptacle).
        at: Pairs (object, location).
        nested: Pairs (inner object, vessel).
        cool: Objects that start cool.
        fits: Pairs (receptacle type, object type).
    """

    task_type: str
    target: str
    goal_place: str
    places: dict[str, str]
    location: dict[str, str]
    start: str
    openable: list[str]
    objects: dict[str, str]
    portable: list[str]
    inside: list[tuple[str, str]]
    at: list[tuple[str, str]]
    nested: list[tuple[str, str]]
    cool: list[str]
    fits: list[tuple[str, str]]


def sentence(layout: Layout, template: int) -> str:
    """Word the task with the first or the second template."""
    place = layout.goal_place.lower()
    return TEMPLATES[layout.task_type][template].format(obj=layout.target.lower(), recep=place, lamp=place)


def problem(layout: Layout) -> str:
    """Write the PDDL problem. It holds no seed or split, so equal rooms are equal texts."""
    receptacle_types = dict.fromkeys([*_ALWAYS_RECEPTACLES, *layout.places.values()])
    object_types = dict.fromkeys(
        [*_ALWAYS_OBJECTS, *(kind for _, kind in layout.fits), *layout.objects.values()]
    )
    if layout.task_type == "look_at_obj_in_light":
        object_types[layout.goal_place] = None
    else:
        receptacle_types[layout.goal_place] = None
    locations = dict.fromkeys([*layout.location.values(), layout.start])
    declared = [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in object_types),
        *(f"{kind}Type - rtype" for kind in receptacle_types),
        *(f"{thing} - object" for thing in layout.objects),
        *(f"{place} - receptacle" for place in layout.places),
        *(f"{location} - location" for location in locations),
    ]
    lines = ["(define (problem generated)", "(:domain alfred)", "(:objects"]
    lines += [f"        {line}" for line in declared]
    lines += [")", "(:init", *(f"        ({fact})" for fact in _facts(layout)), ")"]
    return "\n".join([*lines, f"(:goal (and {_goal(layout)}))", ")"]) + "\n"


def _facts(layout: Layout) -> Iterator[str]:
    """Yield the init facts."""
    yield f"atLocation agent1 {layout.start}"
    for place, kind in layout.places.items():
        yield f"receptacleType {place} {kind}Type"
        yield f"receptacleAtLocation {place} {layout.location[place]}"
    for place in layout.openable:
        yield f"openable {place}"
    for thing, kind in layout.objects.items():
        yield f"objectType {thing} {kind}Type"
        abilities = (
            ("cleanable", rooms.CLEANABLE),
            ("heatable", rooms.HEATABLE),
            ("coolable", rooms.COOLABLE),
            ("sliceable", rooms.SLICEABLE),
            ("isReceptacleObject", rooms.VESSELS),
            ("toggleable", frozenset(rooms.LAMPS)),
        )
        for predicate, kinds in abilities:
            if kind in kinds:
                yield f"{predicate} {thing}"
    for thing in layout.portable:
        yield f"pickupable {thing}"
    for thing, place in layout.inside:
        yield f"inReceptacle {thing} {place}"
    for thing, location in layout.at:
        yield f"objectAtLocation {thing} {location}"
    for inner, vessel in layout.nested:
        yield f"inReceptacleObject {inner} {vessel}"
    for thing in layout.cool:
        yield f"isCool {thing}"
    for place, kind in layout.fits:
        yield f"canContain {place}Type {kind}Type"


def _goal(layout: Layout) -> str:
    """Return the goal in the shape of its task type."""
    target, place = f"{layout.target}Type", f"{layout.goal_place}Type"
    if layout.task_type == "look_at_obj_in_light":
        return (
            "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and"
            f" (objectType ?ot {place}) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l)"
            " (atLocation ?a ?l) (inReceptacle ?ot ?r)))"
            f" (exists (?o - object ?a - agent) (and (objectType ?o {target}) (holds ?a ?o)))"
        )
    if layout.task_type == "pick_two_obj_and_place":
        return (
            f"(exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 {target})"
            f" (receptacleType ?r {place}) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and"
            f" (not (= ?o1 ?o2)) (objectType ?o2 {target}) (receptacleType ?r {place})"
            " (inReceptacle ?o2 ?r))))))"
        )
    types = f"(objectType ?o {target}) (receptacleType ?r {place})"
    if layout.task_type in rooms.TOOLS:
        _, _, ability, flag = rooms.TOOLS[layout.task_type]
        body = f"({ability} ?o) {types} ({flag} ?o) (inReceptacle ?o ?r)"
    else:
        body = f"(inReceptacle ?o ?r) {types}"
    return f"(exists (?r - receptacle) (exists (?o - object) (and {body})))"
