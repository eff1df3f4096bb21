"""What generated rooms look like: every feature of the official games, or the tiny student's small world."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from pivotopd.environments.alfworld.rooms import ROOMS, Room
from pivotopd.errors import ConfigError


@dataclass(frozen=True)
class GeneratorOptions:
    """What rooms look like. Ranges are inclusive; shares are probabilities.

    The defaults produce every feature of the official games.

    Attributes:
        rooms: Kinds of room that :func:`.generator.generate_games` draws from.
        objects: Types that may be the goal's object; empty for all of the room.
        receptacles: How many receptacles; more where the task needs more.
        targets: How many objects of the goal's type; at least two for ``pick_two_obj_and_place``.
        distractors: How many other objects, lookalikes not counted.
        lookalike: Share of games with objects that are easily taken for the goal's.
        twins: How many of them such a game has.
        apart: They lie away from the goal's objects and from one another, where there is room.
        colocated: Share of receptacles that share the previous one's location.
        several_receptacles: Share of objects that are listed in two receptacles at once.
        unopenable: Share of cabinets and drawers that stand open for good.
        lamps: Share of games with a lamp that the goal does not need.
        loose_lamp: Share of games with a floor lamp in no receptacle: it can never be used.
        cool_start: Share of the coolable objects in a fridge that start cool.
        nested: Share of vessels with an object in them.
        dead_end: Share of games with a portable object that fits no receptacle.
        loose: Share of games with a sliceable object in no receptacle.
        fixtures: Share of games with a fixture, which lies in no receptacle and cannot be taken.
        stale: Share of objects whose location disagrees with their receptacle's.
        gaps: Share of unneeded rows that the table of what fits where lacks.
    """

    rooms: tuple[Room, ...] = ("kitchen", "bedroom", "bathroom", "livingroom")
    objects: tuple[str, ...] = ()
    receptacles: tuple[int, int] = (6, 16)
    targets: tuple[int, int] = (1, 3)
    distractors: tuple[int, int] = (4, 18)
    lookalike: float = 0.6
    twins: int = 1
    apart: bool = False
    colocated: float = 0.15
    several_receptacles: float = 0.08
    unopenable: float = 0.3
    lamps: float = 0.4
    loose_lamp: float = 0.2
    cool_start: float = 0.3
    nested: float = 0.15
    dead_end: float = 0.35
    loose: float = 0.15
    fixtures: float = 0.5
    stale: float = 0.03
    gaps: float = 0.1

    def __post_init__(self) -> None:
        for name, least in (("receptacles", 2), ("targets", 1), ("distractors", 0)):
            low, high = getattr(self, name)
            if not least <= low <= high:
                raise ConfigError(
                    f"The generator's range {name} is ({low}, {high}).",
                    mend=f"give two numbers, the first at least {least} and not above the second",
                )
        if self.twins < 1:
            raise ConfigError(f"The generator's twins are {self.twins}.", mend="give at least 1")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, float) and not 0 <= value <= 1:
                raise ConfigError(
                    f"The generator's share {entry.name} is {value}.", mend="give a number from 0 to 1"
                )
        if not self.rooms or set(self.rooms) - set(ROOMS):
            raise ConfigError(
                f"The generator's rooms are {self.rooms}.", mend=f"give at least one of {', '.join(ROOMS)}"
            )


PLAIN: Final = GeneratorOptions(
    rooms=("kitchen",),
    objects=("Apple", "Tomato", "Bread", "Plate", "Potato", "Egg", "Mug", "Cup", "Fork", "Spoon"),
    receptacles=(5, 7),
    targets=(1, 1),
    distractors=(3, 5),
    lookalike=0.85,
    twins=2,
    apart=True,
    colocated=0.0,
    several_receptacles=0.0,
    unopenable=0.0,
    lamps=0.0,
    loose_lamp=0.0,
    cool_start=0.0,
    nested=0.0,
    dead_end=0.0,
    loose=0.0,
    fixtures=0.0,
    stale=0.0,
    gaps=0.0,
)
"""Small kitchens with one trap, the lookalike: what a student of half a million weights can learn.

A player that falls for the trap and never undoes it wins some 0.4 of them in 20 turns; one that undoes it
wins nearly all.
"""
