"""What the game says about a state: lists, receptacles, the room, the object in the hand.

The wire format is the stock engine's, to the byte, with its quirks (docs/alfworld.md, Two engines).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pivotopd.environments.alfworld.problem import State, World

NOTHING_HAPPENS: Final = "Nothing happens."
HELP: Final = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
"""Answer to ``help``: it has lost its first newline and keeps its last."""

_MIDDLE: Final = "You are in the middle of a room. Looking quickly around you, you see "


def joined(entries: Sequence[str]) -> str:
    """Join entries as the game does: a comma before ``and`` also with two, ``nothing`` with none."""
    if not entries:
        return "nothing"
    if len(entries) == 1:
        return entries[0]
    return f"{', '.join(entries[:-1])}, and {entries[-1]}"


def listed(world: World, ids: Sequence[str]) -> str:
    """Name ids in the given order, each with the article ``a``, which never becomes ``an``."""
    names = world.names
    return joined([f"a {names[key]}" for key in ids])


def receptacle(world: World, state: State, key: str) -> str:
    """Describe a receptacle. Whether it can be opened is its own property, not its class's."""
    name = world.names[key]
    openable = key in world.openable
    if openable and key not in state.opened:
        return f"The {name} is closed."
    contents = listed(world, sorted([thing for thing, place in state.inside if place == key]))
    return (
        f"The {name} is open. In it, you see {contents}."
        if openable
        else f"On the {name}, you see {contents}."
    )


def look(world: World, state: State) -> str:
    """Describe the agent's surroundings: what it faces, and what lies there after being moved about.

    The second part depends on history: it lists the objects at this location once for every receptacle here
    which they were taken from and not put back into.
    """
    here = world.at.get(state.location)
    if not here:
        return f"{_MIDDLE}nothing."
    floor: list[str] = []
    if state.removed:
        for thing in sorted([o for o, location in state.object_at if location == state.location]):
            floor += [thing for place in here if (thing, place) in state.removed]
    facing = joined([world.names[key] for key in here])
    return f"You are facing the {facing}. Next to it, you see {listed(world, floor)}."


def reset_text(world: World) -> str:
    """Return the first observation. Only here does the middle of the room show all receptacles."""
    if world.start.location in world.at:
        room = look(world, world.start)
    else:
        room = f"{_MIDDLE}{listed(world, world.receptacles)}."
    return f"-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {world.sentence}"


def inventory(world: World, state: State) -> str:
    """Tell what is in the hand."""
    if state.held is None:
        return "You are not carrying anything."
    return f"You are carrying: a {world.names[state.held]}."


def held_object(world: World, state: State, key: str) -> str:
    """Describe the object in the hand. An object that holds others hides its flags."""
    name = world.names[key]
    if key in world.receptacle_objects:
        return f"This is a normal {name}. In it, you see {listed(world, world.inside_object.get(key, ()))}."
    quality = _quality(state, key)
    if quality:
        return f"This is a {quality} {name}."
    if key in world.toggleable and key in state.toggled:
        return f"This {name} is on."
    if key in state.sliced and key in world.sliceable:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


def _quality(state: State, key: str) -> str:
    """Name what the tools did to an object. ``cold`` is said only where nothing else is."""
    clean, hot, cool = key in state.clean, key in state.hot, key in state.cool
    # Hot and cool at once can only come from a problem's init: hot goes first.
    words = [word for word, true in (("hot", hot), ("cool", cool and not hot)) if true]
    words += ["and"] * (bool(words) and clean) + ["clean"] * clean
    if key in state.sliced and words:
        return " ".join([*words, "sliced"])
    if words == ["cool"]:
        return "cold"
    return " ".join(words)
