"""The oracle: the exact number of turns that a state is away from winning, and the actions that shorten it.

It sees everything, also what the student has not seen: a turn that looks for an object in the wrong place is
at best neutral to it. Say so with every number that rests on it. The paper uses an oracle for analysis only
(App. A); here it can also be the teacher (docs/method.md, The oracle as teacher).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from pivotopd.environments.alfworld.problem import TOOL_TYPES, State, World
from pivotopd.environments.alfworld.projection import Projector
from pivotopd.environments.alfworld.search import Aim, Problem, shortest
from pivotopd.environments.distances import Change, classify_distances
from pivotopd.errors import GameError

Style = Literal["move", "put"]

NODE_LIMIT: Final = 200_000
"""Search states kept before :class:`~pivotopd.errors.SearchLimit`; no official game comes near it."""

_CACHE_SIZE: Final = 200_000
_distances: dict[Problem, int | None] = {}


def _distance(problem: Problem, node_limit: int) -> int | None:
    """Look a distance up, or search. The cache is shared by all games and starts anew when it is full."""
    try:
        return _distances[problem]
    except KeyError:
        pass
    found = shortest(problem, node_limit)
    if len(_distances) >= _CACHE_SIZE:
        _distances.clear()
    _distances[problem] = found
    return found


class Oracle:
    """Distances in one game.

    Args:
        world: The game.
        node_limit: Largest number of search states kept.
        aim: What to reach; by default the game's goal.

    Raises:
        GameError: The game has a lamp that can be carried.
    """

    def __init__(self, world: World, node_limit: int = NODE_LIMIT, aim: Aim | None = None) -> None:
        self.world = world
        self._node_limit = node_limit
        self._project = Projector(world, aim)

    def distance(self, state: State) -> int | None:
        """Return the least number of turns to the goal, or None where it cannot be reached any more.

        Raises:
            SearchLimit: The search grew too large. It never means that the state is unsolvable.
        """
        return _distance(self._project(state), self._node_limit)

    def optimal_actions(self, state: State, wording: Style = "move") -> tuple[str, ...]:
        """Return all commands after which the distance is one less, sorted.

        Empty where the goal holds already or cannot be reached.

        Args:
            state: Any state of the game.
            wording: ``move`` for ALFWorld 0.4's commands, ``put`` for 0.2's.

        Raises:
            SearchLimit: As for :meth:`distance`.
        """
        distance = self.distance(state)
        if not distance:
            return ()
        found: set[str] = set()
        for commands, after in self._effects(state, wording):
            if self.distance(after) == distance - 1:
                found.update(commands)
        return tuple(sorted(found))

    def classify(self, before: State, after: State) -> Change:
        """Class the turn between two states; see :func:`classify_distances`."""
        return classify_distances(self.distance(before), self.distance(after))

    def _effects(self, state: State, wording: Style) -> Iterator[tuple[list[str], State]]:
        """Yield the commands that change the state, and what they lead to; one entry for one new state.

        ``close`` and ``slice`` are left out: they can bring no goal nearer. :attr:`State.removed` and
        :attr:`State.object_at` are left as they are: no distance depends on them.
        """
        world, names = self.world, self.world.names
        for location, receptacles in world.at.items():
            if location != state.location:
                yield [f"go to {names[r]}" for r in receptacles], state._replace(location=location)
        for receptacle in world.at.get(state.location, ()):
            name = names[receptacle]
            closed = receptacle in world.openable and receptacle not in state.opened
            if closed:
                yield [f"open {name}"], state._replace(opened=state.opened | {receptacle})
            yield from self._handle(state, receptacle, closed, wording)

    def _handle(
        self, state: State, receptacle: str, closed: bool, wording: Style
    ) -> Iterator[tuple[list[str], State]]:
        """Yield what can be done with the objects at a receptacle here."""
        world, names, held = self.world, self.world.names, state.held
        name, kind = names[receptacle], world.receptacle_type[receptacle]
        for thing, place in state.inside if held is None or world.goal.lamp_type else ():
            if place != receptacle:
                continue
            if thing in world.toggleable:
                yield [f"use {names[thing]}"], state._replace(toggled=state.toggled | {thing})
            if held is None and not closed and thing in world.goal_objects & world.pickupable:
                left = state._replace(held=thing, inside=state.inside - {(thing, receptacle)})
                yield [f"take {names[thing]} from {name}"], left
        if held is None:
            return
        if kind == TOOL_TYPES.get(world.goal.tool or ""):
            yield from self._prepare(state, held, name)
        if not closed and (kind, world.object_type.get(held, "")) in world.fits:
            put = {"move": f"move {names[held]} to {name}", "put": f"put {names[held]} in/on {name}"}[wording]
            yield [put], state._replace(held=None, inside=state.inside | {(held, receptacle)})

    def _prepare(self, state: State, held: str, tool_name: str) -> Iterator[tuple[list[str], State]]:
        """Yield the goal's tool action on the held object."""
        world, tool = self.world, self.world.goal.tool
        command = [f"{tool} {world.names[held]} with {tool_name}"]
        if held not in world.goal_objects:
            return
        if tool == "clean":
            yield command, state._replace(clean=state.clean | {held})
        elif tool == "heat":
            yield command, state._replace(hot=state.hot | {held}, cool=state.cool - {held})
        elif tool == "cool":
            yield command, state._replace(cool=state.cool | {held}, hot=state.hot - {held})
        else:
            raise GameError(f"The goal's tool {tool!r} is unknown.", mend="use games of the six task types")
