"""From a game's state to the few facts that decide its distance.

Objects that matter are those of the goal's type with the needed ability; receptacles that matter hold such an
object or a goal lamp, are of the goal's type, are the tool, or can take the object that is in the way. Of
locations and objects that no plan can tell apart one is kept, or two where the goal asks for two.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from pivotopd.environments.alfworld import search
from pivotopd.environments.alfworld.problem import TOOL_TYPES, State, World, flagged
from pivotopd.environments.alfworld.search import Aim, Place, Problem, Spot
from pivotopd.errors import GameError


def aim_of(world: World) -> Aim:
    """Return the aim that a world's goal is."""
    if world.goal.lamp_type is not None:
        return Aim.LOOK
    return Aim.PAIR if world.goal.count == 2 else Aim.PLACE


class Projector:
    """Projects the states of one game for one aim.

    Args:
        world: The game.
        aim: What to reach; by default the game's goal.
        keep: How many of interchangeable things are kept; by default as many as a plan can use. No larger
            number changes a distance.

    Raises:
        GameError: A lamp that the goal needs can be carried away. No ALFWorld game has one, and the
            projection does not cover it.
    """

    def __init__(self, world: World, aim: Aim | None = None, keep: int | None = None) -> None:
        goal = world.goal
        self._world = world
        self._aim = aim_of(world) if aim is None else aim
        self._tooled = self._aim is Aim.PLACE and goal.tool is not None
        self._keep = keep or (2 if self._aim is Aim.PAIR else 1)
        self._wanted = frozenset() if self._aim is Aim.EMPTY else world.goal_objects
        self._lamps = frozenset(
            lamp for lamp in world.toggleable if world.object_type.get(lamp) == goal.lamp_type
        )
        loose = self._lamps & world.pickupable
        if loose:
            raise GameError(
                f"The lamp {min(loose)} can be carried: the oracle does not cover that.",
                mend="leave this game out of analyses that need the oracle",
            )
        places = self._aim in {Aim.PLACE, Aim.PAIR}
        self._placeable = places and (str(goal.receptacle_type), goal.object_type) in world.fits
        self._static: list[tuple[str, str, str, bool, int]] = []
        tool = TOOL_TYPES.get(goal.tool or "") if self._tooled else None
        for receptacle in world.receptacles:
            kind = world.receptacle_type[receptacle]
            bits = search.TOOL if kind == tool else 0
            if places and kind == goal.receptacle_type:
                bits |= search.TARGET
            openable = receptacle in world.openable
            self._static.append((receptacle, world.location_of[receptacle], kind, openable, bits))
        self._fitting: defaultdict[str, set[str]] = defaultdict(set)
        for kind, thing in world.fits:
            self._fitting[thing].add(kind)

    def __call__(self, state: State) -> Problem:
        """Project a state."""
        lying, lamps = self._lying(state)
        ready = flagged(state, self._world.goal) if self._tooled else None
        named: dict[str, int] = {}
        things: list[int] = []
        held, hand = state.held, search.NOTHING
        if held is not None:
            hand = search.WRONG
            if held in self._wanted:
                hand = named[held] = 0
                things.append(self._thing(held, ready))
        contents: defaultdict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for thing in sorted(lying):
            places = lying[thing]
            if len(places) > 1 and thing not in named:
                named[thing] = len(things)
                things.append(self._thing(thing, ready))
            for place in places:
                if thing in named:
                    contents[place][0].append(named[thing])
                else:
                    contents[place][1].append(self._thing(thing, ready))
        return self._assemble(state, self._drops(held, held in lying), contents, lamps, hand, tuple(things))

    def _lying(self, state: State) -> tuple[dict[str, list[str]], dict[str, int]]:
        """Return where each wanted object lies, and the lamp bits of each receptacle."""
        lying: dict[str, list[str]] = {}
        lamps: dict[str, int] = {}
        wanted, goal_lamps, pickupable = self._wanted, self._lamps, self._world.pickupable
        for pair in state.inside:
            thing, place = pair
            if thing in wanted:
                if thing in pickupable or pair in self._world.goal_pairs:
                    lying.setdefault(thing, []).append(place)
            elif thing in goal_lamps:
                bit = search.LIT if thing in state.toggled else search.LAMP
                lamps[place] = lamps.get(place, 0) | bit
        return lying, lamps

    def _thing(self, thing: str, ready: frozenset[str] | None) -> int:
        bits = search.PICKUP if thing in self._world.pickupable else 0
        return bits | search.READY if ready is None or thing in ready else bits

    def _drops(self, held: str | None, lies_too: bool) -> set[str]:
        """Return the types of receptacle where it can make sense to put down what is held.

        A wanted object that needs no tool just goes to its target. With two to place, it may be in the way
        where it also lies in a target: it counts there already.
        """
        if held is None:
            return set()
        if held in self._wanted and not self._tooled and not (self._aim is Aim.PAIR and lies_too):
            return set()
        return self._fitting.get(self._world.object_type.get(held, ""), set())

    def _assemble(
        self,
        state: State,
        drops: set[str],
        contents: defaultdict[str, tuple[list[int], list[int]]],
        lamps: dict[str, int],
        hand: int,
        things: tuple[int, ...],
    ) -> Problem:
        rooms: defaultdict[str, list[Spot]] = defaultdict(list)
        distinct: set[str] = {state.location}
        for receptacle, location, kind, openable, static in self._static:
            holds = receptacle in contents
            bits = static
            if not self._placeable and not holds:
                bits &= ~search.TARGET
            if kind in drops:
                bits |= search.DROP
            if (
                openable
                and receptacle not in state.opened
                and (holds or bits & (search.TARGET | search.DROP))
            ):
                bits |= search.CLOSED
            bits |= lamps.get(receptacle, 0)
            if holds:
                own, anonymous = contents[receptacle]
                if own:
                    distinct.add(location)
                rooms[location].append(Spot(bits, tuple(sorted(own)), self._few(anonymous)))
            elif bits:
                spot = Spot(bits, (), ())
                if spot not in rooms[location]:
                    rooms[location].append(spot)
        here = tuple(sorted(rooms.pop(state.location, ())))
        others: list[Place] = []
        alike: Counter[Place] = Counter()
        for location, spots in rooms.items():
            place = tuple(sorted(spots))
            alike[place] += 1
            if location in distinct or alike[place] <= self._keep:
                others.append(place)
        others.sort()
        return Problem(self._aim, self._placeable, hand, things, here, tuple(others))

    def _few(self, anonymous: list[int]) -> tuple[int, ...]:
        """Keep as many objects of a kind in one receptacle as a plan can use."""
        if len(anonymous) < 2:
            return tuple(anonymous)
        return tuple(sorted((Counter(anonymous) & Counter(dict.fromkeys(anonymous, self._keep))).elements()))
