"""Shortest plans on a projected ALFWorld state: breadth-first search on what can still matter.

A :class:`Problem` is a canonical value: two states of two games with the same problem have the same distance,
so results are cached across games. :mod:`.projection` builds problems, this module solves them.

Only one optimal plan has to survive the pruning, so the search keeps to a fixed order of work. A hand that is
empty fetches, a hand that holds a wanted object prepares and places it, a hand that holds a wrong object puts
it down. An object taken during the plan is put down only where it counts, a lamp is used only with the object
in hand, and two ``go to`` never follow each other (every place is one ``go to`` away from every other).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from pivotopd.errors import SearchLimit

NOTHING = -1
"""Hand: empty."""
WRONG = -2
"""Hand: an object that cannot serve the goal."""
_DONE = -3
"""Hand: the lamp was used with the object in it, the aim LOOK is reached."""

CLOSED, TARGET, TOOL, DROP, LAMP, LIT = 1, 2, 4, 8, 16, 32
"""Bits of a spot: closed; of the goal's type; prepares the object; the held object fits; unlit, lit lamp."""

PICKUP, READY = 1, 2
"""Bits of an object: it can be picked up; it needs no (further) preparation."""


class Aim(IntEnum):
    """What the search looks for."""

    PLACE = 0
    """A ready object in a target."""
    PAIR = 1
    """Two different objects in one target."""
    LOOK = 2
    """An object in the hand, next to a lit lamp."""
    HOLD = 3
    """An object in the hand."""
    EMPTY = 4
    """Nothing in the hand."""


class Spot(NamedTuple):
    """A receptacle that can matter: indices of the named objects in it, and bits of the nameless ones."""

    bits: int
    named: tuple[int, ...]
    anonymous: tuple[int, ...]


Place = tuple[Spot, ...]
"""The spots of one location, sorted."""


class Problem(NamedTuple):
    """A projected state.

    Attributes:
        aim: The goal.
        placeable: Objects of the goal's type fit receptacles of the goal's type.
        hand: NOTHING, WRONG, or an index into ``things``.
        things: Bits of the objects that keep their identity: held, or in several receptacles.
        here: The agent's location.
        others: The other locations that can matter, sorted; of interchangeable ones only a few.
    """

    aim: Aim
    placeable: bool
    hand: int
    things: tuple[int, ...]
    here: Place
    others: tuple[Place, ...]


class _Node(NamedTuple):
    """Search state. Sets of spots and of objects are bit masks.

    ``first`` tells that the hand still holds what it held at the root.
    """

    at: int
    hand: int
    first: bool
    closed: int
    positions: tuple[int, ...]
    ready: int


def _bits(mask: int) -> Iterator[int]:
    """Yield the single bits of a mask."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


class _Search:
    """The tables of one problem, and the search over them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        things = list(problem.things)
        positions = [0] * len(things)
        masks = dict.fromkeys((CLOSED, TARGET, TOOL, DROP, LAMP, LIT), 0)
        self.area: list[int] = []  # spots of each location
        spot = 1
        for place in (problem.here, *problem.others):
            area = 0
            for bits, named, anonymous in place:
                area |= spot
                for bit in masks:
                    if bits & bit:
                        masks[bit] |= spot
                for thing in named:
                    positions[thing] |= spot
                for thing_bits in anonymous:
                    things.append(thing_bits)
                    positions.append(spot)
                spot <<= 1
            self.area.append(area)
        self.targets, self.tools, self.drops = masks[TARGET], masks[TOOL], masks[DROP]
        self.lamps, self.lit = masks[LAMP], masks[LIT]
        self.pickup = [bool(bits & PICKUP) for bits in things]
        ready = sum(1 << index for index, bits in enumerate(things) if bits & READY)
        self.root = _Node(0, problem.hand, problem.hand >= 0, masks[CLOSED], tuple(positions), ready)

    def holds(self, node: _Node) -> bool:
        """Tell whether the aim is reached."""
        aim = self.problem.aim
        if aim is Aim.EMPTY:
            return node.hand == NOTHING
        if aim is Aim.HOLD:
            return node.hand >= 0
        if aim is Aim.LOOK:
            return node.hand == _DONE or (node.hand >= 0 and bool(self.lit & self.area[node.at]))
        once = 0
        for thing, spots in enumerate(node.positions):
            if node.ready >> thing & 1:
                counted = spots & self.targets
                if counted and (aim is Aim.PLACE or counted & once):
                    return True
                once |= counted
        return False

    def wanted(self, node: _Node) -> int:
        """Return the spots where a node's hand can do its work, closed ones too."""
        if node.hand == NOTHING:
            spots = 0
            for thing, where in enumerate(node.positions):
                if self.pickup[thing]:
                    spots |= where
            return spots
        if node.hand == WRONG or self.problem.aim is Aim.EMPTY:
            return self.drops
        if self.problem.aim is Aim.LOOK:
            return self.lamps | self.lit
        spots = self.targets if self.problem.placeable else 0
        if not node.ready >> node.hand & 1:
            spots = self.tools
        return spots | self.drops if node.first else spots

    def work(self, node: _Node, spot: int) -> Iterator[_Node]:
        """Yield what one action at a wanted spot leads to."""
        closed, hand, positions = node.closed, node.hand, node.positions
        unready = hand >= 0 and not node.ready >> hand & 1
        if unready and spot & self.tools and self.problem.aim is not Aim.EMPTY:
            yield node._replace(ready=node.ready | 1 << hand)
        if hand >= 0 and unready and not (spot & self.drops and node.first):
            return
        if spot & closed:
            yield node._replace(closed=closed ^ spot)
        elif hand == NOTHING:
            for thing, where in enumerate(positions):
                if where & spot and self.pickup[thing]:
                    left = (*positions[:thing], where ^ spot, *positions[thing + 1 :])
                    yield node._replace(hand=thing, first=False, positions=left)
        elif hand == WRONG:
            yield node._replace(hand=NOTHING)
        else:
            put = (*positions[:hand], positions[hand] | spot, *positions[hand + 1 :])
            yield node._replace(hand=NOTHING, first=False, positions=put)

    def after(self, node: _Node, arrived: bool) -> Iterator[tuple[_Node, bool]]:
        """Yield what one turn can lead to, and whether that turn was a ``go to``.

        The aim LOOK never gets here next to a lit lamp with the object in hand, so a lamp that is near is
        unlit; using it is told as a hand that is done, ``_DONE``.
        """
        wanted = self.wanted(node)
        near = wanted & self.area[node.at]
        if near and node.hand >= 0 and self.problem.aim is Aim.LOOK:
            yield node._replace(hand=_DONE), False
            return
        for spot in _bits(near):
            for worked in self.work(node, spot):
                yield worked, False
        if not arrived:
            for location, area in enumerate(self.area):
                if area & wanted and location != node.at:
                    yield node._replace(at=location), True

    def shortest(self, node_limit: int) -> int | None:
        """Search layer by layer; see :func:`shortest`."""
        if self.holds(self.root):
            return 0
        seen = {self.root}
        layer = [(self.root, False)]
        depth = 0
        while layer:
            depth += 1
            following: list[tuple[_Node, bool]] = []
            for node, arrived in layer:
                for reached in self.after(node, arrived):
                    if reached[0] not in seen:
                        if self.holds(reached[0]):
                            return depth
                        seen.add(reached[0])
                        following.append(reached)
            if len(seen) > node_limit:
                raise SearchLimit(
                    f"the oracle's search passed {node_limit} states at depth {depth}",
                    where=f"aim {self.problem.aim.name.lower()}, {len(self.area)} places",
                    mend="raise the oracle's node_limit",
                )
            layer = following
        return None


def shortest(problem: Problem, node_limit: int) -> int | None:
    """Return the least number of turns that reaches a problem's aim.

    Args:
        problem: The projected state.
        node_limit: Largest number of search states kept.

    Returns:
        The distance in turns, 0 where the aim is reached, None where it cannot be.

    Raises:
        SearchLimit: The search passed ``node_limit``. It says nothing about solvability.
    """
    return _Search(problem).shortest(node_limit)
