"""A game's PDDL problem and task sentence, parsed into an immutable world and its start state.

Only the problem is read: the domain is ALFWorld's fixed one, and the grammar inside a game file is code that
is never looked at. Identifiers stay the raw, lower-cased ones of the problem; what a player reads are the
display names derived from them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pivotopd.environments.alfworld.goals import Goal, parse_goal
from pivotopd.environments.alfworld.pddl import Facts, declared, sections_of, unusable

__all__ = ["Goal", "State", "World", "goal_holds", "parse_problem"]

TOOL_TYPES: Final = {"clean": "sinkbasintype", "heat": "microwavetype", "cool": "fridgetype"}
"""Type of the receptacle that each tool action needs."""

_MARKUP = re.compile(r"[#{}\[\]|;<>\"\x00-\x1f\x7f\u2028\u2029\x85]")


class State(NamedTuple):
    """All that play changes, as plain values: hashable, comparable, picklable, shared freely.

    Attributes:
        location: Where the agent is.
        held: The object in the hand, or None.
        inside: Pairs (object, receptacle). An object may lie in several receptacles at once.
        object_at: Pairs (object, location); may disagree with where the object's receptacle is.
        opened: Receptacles that are open.
        clean: Objects that were cleaned.
        hot: Objects that are hot.
        cool: Objects that are cool.
        sliced: Objects that were sliced.
        toggled: Lamps that were used.
        removed: Pairs (object, receptacle) that were taken apart and not put together again. Only ``look``
            shows them, so they are history that belongs in every snapshot.
    """

    location: str
    held: str | None
    inside: frozenset[tuple[str, str]]
    object_at: frozenset[tuple[str, str]]
    opened: frozenset[str]
    clean: frozenset[str]
    hot: frozenset[str]
    cool: frozenset[str]
    sliced: frozenset[str]
    toggled: frozenset[str]
    removed: frozenset[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class World:
    """What never changes in a game. Two worlds are the same only if they are one object.

    Attributes:
        receptacles: All receptacles, sorted by id.
        location_of: Location of each receptacle.
        at: Receptacles at each location that has any, sorted by id.
        receptacle_type: Type of each receptacle.
        object_type: Type of each object that has one.
        fits: Pairs (receptacle type, object type): what may be put where.
        openable: Receptacles that can be opened.
        pickupable: Objects that can be taken.
        cleanable: Objects that can be cleaned.
        heatable: Objects that can be heated.
        coolable: Objects that can be cooled.
        toggleable: Lamps.
        sliceable: Objects that a knife can slice.
        receptacle_objects: Objects that hold others, such as bowls.
        inside_object: What lies in each such object, sorted by id.
        names: Display name of every id.
        goal: The task.
        goal_objects: Objects of the goal's type that have the ability which it asks for.
        goal_pairs: Pairs (object, receptacle) of the goal's types; empty for ``look_at_obj_in_light``.
        sentence: The task in words, with its full stop.
        start: The state at reset.
    """

    receptacles: tuple[str, ...]
    location_of: Mapping[str, str]
    at: Mapping[str, tuple[str, ...]]
    receptacle_type: Mapping[str, str]
    object_type: Mapping[str, str]
    fits: frozenset[tuple[str, str]]
    openable: frozenset[str]
    pickupable: frozenset[str]
    cleanable: frozenset[str]
    heatable: frozenset[str]
    coolable: frozenset[str]
    toggleable: frozenset[str]
    sliceable: frozenset[str]
    receptacle_objects: frozenset[str]
    inside_object: Mapping[str, tuple[str, ...]]
    names: Mapping[str, str]
    goal: Goal
    goal_objects: frozenset[str]
    goal_pairs: frozenset[tuple[str, str]]
    sentence: str
    start: State


def parse_problem(problem: str, sentence: str, where: str) -> World:
    """Read a game.

    Args:
        problem: Text of the PDDL problem, any letter case.
        sentence: The task in words, with its full stop.
        where: What to name in an error: the game's id or file.

    Returns:
        The world, with its start state.

    Raises:
        GameError: The text is no ALFWorld problem, the goal has none of the six known shapes, the goal
            cannot be reached even if nothing were ever undone, or the sentence holds markup.
    """
    check_sentence(sentence, where)
    sections = sections_of(problem, where)
    facts = Facts(sections["init"], declared(sections["objects"]), where)
    goal = parse_goal(sections["goal"], where)
    world = _world(facts, goal, sentence)
    _check_reachable(world, where)
    return world


def check_sentence(sentence: str, where: str) -> None:
    """Refuse a task sentence that is empty or more than plain text on one line.

    Raises:
        GameError: It holds one of ``# { } [ ] | ; < > "``, a control character, or nothing.
    """
    found = _MARKUP.search(sentence)
    if found:
        raise unusable(f"The task sentence holds {found.group()!r}, which is not plain text.", where)
    if not sentence.strip() or sentence != sentence.strip():
        raise unusable("The task sentence is empty or has blanks around it.", where)


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Name all ids: the text before ``_bar_`` and a number that counts down in id order.

    Objects, receptacles and locations share one counter per base. An id without ``_bar_`` gets no number.
    """
    bases: defaultdict[str, list[str]] = defaultdict(list)
    names: dict[str, str] = {}
    for key in sorted(ids):
        base, bar, _ = key.partition("_bar_")
        if not bar:
            names[key] = f"{key} "
            continue
        bases[f"{base}basin" if "basin" in key else base].append(key)
    for base, keys in bases.items():
        names.update((key, f"{base} {len(keys) - i}") for i, key in enumerate(keys))
    return names


def _world(facts: Facts, goal: Goal, sentence: str) -> World:
    location_of = facts.function("receptacleatlocation")
    receptacle_type = facts.function("receptacletype")
    object_type = facts.function("objecttype")
    start = _start(facts)
    names = display_names(facts.ids)
    receptacles = _check_things(facts, location_of, receptacle_type, names)
    at: defaultdict[str, list[str]] = defaultdict(list)
    for receptacle in receptacles:
        at[location_of[receptacle]].append(receptacle)
    inner: defaultdict[str, list[str]] = defaultdict(list)
    for thing, outer in sorted(facts.pairs("inreceptacleobject")):
        inner[outer].append(thing)
    ability = goal.ability
    able = facts.ones(ability) if ability else frozenset(object_type)
    objects = frozenset(o for o, kind in object_type.items() if kind == goal.object_type and o in able)
    targets = [r for r in receptacles if receptacle_type[r] == goal.receptacle_type]
    return World(
        receptacles=receptacles,
        location_of=location_of,
        at={location: tuple(there) for location, there in at.items()},
        receptacle_type=receptacle_type,
        object_type=object_type,
        fits=facts.pairs("cancontain"),
        openable=facts.ones("openable"),
        pickupable=facts.ones("pickupable"),
        cleanable=facts.ones("cleanable"),
        heatable=facts.ones("heatable"),
        coolable=facts.ones("coolable"),
        toggleable=facts.ones("toggleable"),
        sliceable=facts.ones("sliceable"),
        receptacle_objects=facts.ones("isreceptacleobject"),
        inside_object={outer: tuple(things) for outer, things in inner.items()},
        names=names,
        goal=goal,
        goal_objects=objects,
        goal_pairs=frozenset((o, r) for o in objects for r in targets),
        sentence=sentence,
        start=start,
    )


def _start(facts: Facts) -> State:
    where = facts.where
    agents = facts.pairs("atlocation")
    if len(agents) != 1:
        raise unusable(f"The problem must place exactly one agent, it places {len(agents)}.", where)
    ((agent, location),) = agents
    held = facts.pairs("holds")
    if len(held) > 1 or {a for a, _ in held} - {agent} or {a for a, _ in held} != facts.ones("holdsany"):
        raise unusable("What the agent holds at the start contradicts itself.", where)
    return State(
        location=location,
        held=next((thing for _, thing in held), None),
        inside=facts.pairs("inreceptacle"),
        object_at=facts.pairs("objectatlocation"),
        opened=facts.ones("opened"),
        clean=facts.ones("isclean"),
        hot=facts.ones("ishot"),
        cool=facts.ones("iscool"),
        sliced=facts.ones("issliced"),
        toggled=facts.ones("istoggled"),
        removed=frozenset(),
    )


def _check_things(
    facts: Facts,
    location_of: Mapping[str, str],
    receptacle_type: Mapping[str, str],
    names: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the sorted receptacles; refuse ones without a place or type, and things without a number."""
    where = facts.where
    inside = facts.pairs("inreceptacle")
    receptacles = set(location_of) | set(receptacle_type) | {r for _, r in inside} | facts.ones("openable")
    homeless = receptacles - (location_of.keys() & receptacle_type.keys())
    if homeless:
        raise unusable(f"The receptacle {min(homeless)} lacks a location or a type.", where)
    if not receptacles:
        raise unusable("The room has no receptacle.", where)
    things = {o for o, _ in inside | facts.pairs("objectatlocation") | facts.pairs("objecttype")}
    things |= {thing for _, thing in facts.pairs("holds")}
    both = things & receptacles
    if both:
        raise unusable(f"{min(both)} is an object and a receptacle at once.", where)
    nameless = sorted(i for i in things | receptacles | set(location_of.values()) if names[i].startswith(" ")
                      or names[i].endswith(" "))  # fmt: skip
    if nameless:
        raise unusable(f"The id {nameless[0]} is not of the form kind_bar_rest.", where)
    return tuple(sorted(receptacles))


def _check_reachable(world: World, where: str) -> None:
    """Refuse a goal that is out of reach even if no action ever undid anything (delete relaxation)."""
    goal, start = world.goal, world.start
    lying = {o for o, _ in start.inside}
    graspable = {o for o in world.goal_objects if o == start.held or (o in world.pickupable and o in lying)}
    if goal.lamp_type is not None:
        lamps = {o for o in lying & world.toggleable if world.object_type.get(o) == goal.lamp_type}
        if not graspable or not lamps:
            raise unusable(
                "The goal needs an object and a lamp within reach, and one of them is missing.", where
            )
        return
    ready = flagged(start, goal)
    tool = TOOL_TYPES.get(goal.tool or "")
    can_flag = tool is None or tool in world.receptacle_type.values()
    usable = {o for o in world.goal_objects if ready is None or o in ready or (o in graspable and can_flag)}
    fit = (goal.receptacle_type, goal.object_type) in world.fits
    for target in {r for _, r in world.goal_pairs}:
        there = {o for o in usable if (o, target) in start.inside or (fit and o in graspable)}
        if len(there) >= goal.count:
            return
    raise unusable(f"No action can ever reach the goal ({goal.task_type}, {goal.object_type}).", where)


def flagged(state: State, goal: Goal) -> frozenset[str] | None:
    """Return the objects that have the flag the goal asks for; None when it asks for none."""
    if goal.tool == "clean":
        return state.clean
    if goal.tool == "heat":
        return state.hot
    return state.cool if goal.tool == "cool" else None


def goal_holds(world: World, state: State) -> bool:
    """Tell whether the goal holds now. It is not latched: a later action may undo it."""
    goal = world.goal
    if goal.lamp_type is not None:
        if state.held not in world.goal_objects or not state.toggled:
            return False
        here = world.at.get(state.location, ())
        return any(
            (lamp, receptacle) in state.inside
            for lamp in state.toggled & world.toggleable
            if world.object_type.get(lamp) == goal.lamp_type
            for receptacle in here
        )
    if state.inside.isdisjoint(world.goal_pairs):
        return False
    placed = state.inside & world.goal_pairs
    if goal.count == 2:
        targets = [r for _, r in placed]
        return len(targets) > len(set(targets))
    ready = flagged(state, goal)
    return ready is None or any(o in ready for o, _ in placed)
