"""Draws one room: which receptacles stand where, which objects lie in them, and what is odd about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

from pivotopd.environments.alfworld import rooms
from pivotopd.environments.alfworld.generator_options import GeneratorOptions
from pivotopd.environments.alfworld.problem_text import Layout
from pivotopd.environments.alfworld.rooms import FITS, ROOMS, RoomKind
from pivotopd.errors import ConfigError

T = TypeVar("T")

_LOOK: Final = "look_at_obj_in_light"
_BROUGHT: Final = ("Mug", "Cup")
"""Objects that suit every tool, brought into rooms that have none that does."""


def draw(rng: np.random.Generator, task_type: str, room: rooms.Room, options: GeneratorOptions) -> Layout:
    """Draw a room for a task. It is solvable as a rule, which the caller checks.

    Raises:
        ConfigError: No object of the options suits the task in this room.
    """
    return _Drawing(rng, task_type, ROOMS[room], options).layout()


class _Drawing:
    """One drawing; its steps share a random generator and a growing layout."""

    def __init__(
        self, rng: np.random.Generator, task_type: str, kind: RoomKind, options: GeneratorOptions
    ) -> None:
        self.rng = rng
        self.task_type = task_type
        self.kind = kind
        self.options = options
        self.counts: Counter[str] = Counter()

    # ------------------------------------------------------------------ draws

    def pick(self, items: Sequence[T]) -> T:
        """Draw one item."""
        return items[int(self.rng.integers(len(items)))]

    def within(self, limits: tuple[int, int]) -> int:
        """Draw a number from an inclusive range."""
        return int(self.rng.integers(limits[0], limits[1] + 1))

    def chance(self, share: float) -> bool:
        """Draw a yes with a probability. One number is used up whatever the probability."""
        return bool(self.rng.random() < share)

    def name(self, kind: str) -> str:
        """Return a new id of a type, in ALFWorld's form."""
        self.counts[kind] += 1
        number = self.counts[kind]
        if kind.endswith("Basin"):
            return f"{kind.removesuffix('Basin')}_bar_{number}_bar_{kind}"
        return f"{kind}_bar_{number:02d}"

    # ------------------------------------------------------------------ steps

    def layout(self) -> Layout:
        """Draw everything, in a fixed order."""
        target, source, goal_place = self.task()
        self.made = Layout(
            self.task_type, target, goal_place, {}, {}, "loc_bar_00", [], {}, [], [], [], [], [], []
        )
        self.furnish(source)
        self.fill(source)
        if self.task_type == _LOOK:
            self.stand(goal_place)
        self.oddities()
        self.table()
        return self.made

    def task(self) -> tuple[str, str, str]:
        """Draw the goal's object type, a type of receptacle to find it in, and the goal's place or lamp."""
        able = rooms.TOOLS[self.task_type][1] if self.task_type in rooms.TOOLS else None
        pool = self.options.objects or self.kind.objects
        suited = [thing for thing in pool if able is None or thing in able]
        if not suited and not self.options.objects:
            suited = [*_BROUGHT]
        choices = []
        for thing in suited:
            places = [place for place in self.kind.receptacles if (place, thing) in FITS]
            if self.task_type == _LOOK:
                choices += [(thing, place, lamp) for place in places for lamp in rooms.LAMPS]
                continue
            tool = rooms.TOOLS[self.task_type][0] if able is not None else ""
            choices += [
                (thing, source, place) for source in places for place in places if place not in {source, tool}
            ]
        if not choices:
            raise ConfigError(
                f"No object of the generator's options suits {self.task_type}.",
                mend="add object types that the task's tool works on and the room has room for",
            )
        thing = self.pick(list(dict.fromkeys(choice[0] for choice in choices)))
        place = self.pick(list(dict.fromkeys(choice[2] for choice in choices if choice[0] == thing)))
        return self.pick([choice for choice in choices if choice[0] == thing and choice[2] == place])

    def furnish(self, source: str) -> None:
        """Draw the receptacles, where they are, and which of them open."""
        required = [source]
        if self.task_type == _LOOK:
            surfaces = [kind for kind in self.kind.receptacles if kind in rooms.SURFACES]
            required.append(self.pick(surfaces))
        else:
            required.append(self.made.goal_place)
        if self.task_type in rooms.TOOLS:
            required.append(rooms.TOOLS[self.task_type][0])
        required = list(dict.fromkeys(required))
        left = Counter(dict(self.kind.receptacles))
        left.subtract(required)
        spare = [kind for kind in sorted(left) for _ in range(max(left[kind], 0))]
        wanted = max(self.within(self.options.receptacles) - len(required), 0)
        extra = [spare[int(i)] for i in self.rng.permutation(len(spare))[:wanted]]
        kinds = [*required, *extra]
        made, location = self.made, 0
        for position in self.rng.permutation(len(kinds)):
            kind = kinds[int(position)]
            place = self.name(kind)
            made.places[place] = kind
            shared = self.chance(self.options.colocated)
            if not (shared and location):
                location += 1
            made.location[place] = f"loc_bar_{location:02d}"
            stuck = self.chance(self.options.unopenable) and kind in {"Cabinet", "Drawer"}
            if kind in rooms.OPENABLE and not stuck:
                made.openable.append(place)

    def fill(self, source: str) -> None:
        """Draw the objects and where they lie."""
        made, options = self.made, self.options
        keep_out = self.task_type in {"pick_and_place_simple", "pick_two_obj_and_place"}
        least = 2 if self.task_type == "pick_two_obj_and_place" else 1
        for index in range(max(self.within(options.targets), least)):
            thing = self.add(made.target)
            away = [p for p in self.homes(made.target) if not keep_out or made.places[p] != made.goal_place]
            if index == 0:
                away = [p for p in away if made.places[p] == source]
            self.lay(thing, self.pick(away), away)
        twin = rooms.LOOKALIKES.get(made.target)
        with_twin = self.chance(options.lookalike)
        others = [kind for kind in self.kind.objects if kind not in {made.target, twin} and self.homes(kind)]
        kinds = [self.pick(others) for _ in range(self.within(options.distractors) if others else 0)]
        if with_twin and twin and self.homes(twin):
            for _ in range(options.twins):
                kinds.insert(int(self.rng.integers(len(kinds) + 1)), twin)
        for kind in kinds:
            homes = self.homes(kind)
            if kind == twin and options.apart:
                mixed = {p for o, p in made.inside if made.objects[o] in {made.target, twin}}
                homes = [place for place in homes if place not in mixed] or homes
            self.lay(self.add(kind), self.pick(homes), homes)

    def homes(self, kind: str) -> list[str]:
        """Return the receptacles of this room that an object type fits."""
        return [place for place, place_kind in self.made.places.items() if (place_kind, kind) in FITS]

    def add(self, kind: str, portable: bool = True) -> str:
        """Add an object that lies nowhere yet."""
        thing = self.name(kind)
        self.made.objects[thing] = kind
        if portable:
            self.made.portable.append(thing)
        return thing

    def lay(self, thing: str, place: str, homes: list[str]) -> None:
        """Lay an object down, sometimes in a second receptacle too, sometimes with a wrong location."""
        made = self.made
        made.inside.append((thing, place))
        spot = made.location[place]
        second = self.pick(homes)
        if self.chance(self.options.several_receptacles) and second != place:
            made.inside.append((thing, second))
        elsewhere = self.pick(list(made.location.values()))
        made.at.append((thing, elsewhere if self.chance(self.options.stale) else spot))
        cool = self.chance(self.options.cool_start)
        if cool and made.places[place] == "Fridge" and made.objects[thing] in rooms.COOLABLE:
            made.cool.append(thing)

    def stand(self, lamp: str) -> None:
        """Put a lamp where it can be used."""
        surfaces = [p for p, kind in self.made.places.items() if kind in rooms.SURFACES]
        if surfaces:
            self.lay(self.add(lamp, portable=False), self.pick(surfaces), surfaces)

    def oddities(self) -> None:
        """Add what the task does not need: fixtures, lamps, nested objects, dead ends."""
        made, options = self.made, self.options
        locations = list(dict.fromkeys(made.location.values()))
        if self.chance(options.lamps):
            self.stand(self.pick(rooms.LAMPS))
        for share, kinds, portable in (
            (options.loose_lamp, ("FloorLamp",), False),
            (options.loose, tuple(sorted(rooms.SLICEABLE)), True),
            (options.fixtures, self.kind.fixtures, False),
        ):
            kind, location = self.pick(kinds), self.pick(locations)
            if self.chance(share) and kind != made.target:
                made.at.append((self.add(kind, portable), location))
        oddment, place = self.pick(self.kind.oddments), self.pick(list(made.places))
        if self.chance(options.dead_end):
            thing = self.add(oddment)
            made.inside.append((thing, place))
            made.at.append((thing, made.location[place]))
        for vessel, place in [pair for pair in made.inside if made.objects[pair[0]] in rooms.VESSELS]:
            beside = [o for o, p in made.inside if p == place and made.objects[o] not in rooms.VESSELS]
            if self.chance(options.nested) and beside:
                made.nested.append((self.pick(beside), vessel))

    def table(self) -> None:
        """Draw the table of what fits where: all that the room uses, and most of the rest."""
        made = self.made
        used = {(made.places[place], made.objects[thing]) for thing, place in made.inside}
        used.add((made.goal_place, made.target))
        kinds = sorted({*self.kind.objects, *made.objects.values()})
        for place in sorted(set(made.places.values())):
            for kind in kinds:
                pair = (place, kind)
                kept = not self.chance(self.options.gaps) or pair in used
                if pair in FITS and kept:
                    made.fits.append(pair)
