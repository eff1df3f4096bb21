"""The informed oracle: the best next actions for one who knows only what play has shown.

The room's furniture is known from the start: which receptacles there are, where, and whether they are shut.
What lies in a receptacle is known once play has shown it, and whether an object is clean, hot or cool once
the agent saw to it. A teacher that used more could not be imitated by a student that sees less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pivotopd.environments.alfworld.oracle import NODE_LIMIT, Oracle, Style
from pivotopd.environments.alfworld.problem import State, World
from pivotopd.environments.alfworld.projection import aim_of
from pivotopd.environments.alfworld.search import Aim

_SHOWN = re.compile(r"(?:On the|The) ([a-z]+ \d+)(?:, you see| is open\. In it, you see)")
_PLACED = re.compile(r"You (?:move|put) the ([a-z]+ \d+) (?:to|in/on) the ([a-z]+ \d+)\.")
_TOLD = re.compile(
    r"(?:You (?:clean|heat|cool) the|nothing special about|This is a(?: (?:hot|cool|cold|clean|sliced|and))*)"
    r" ([a-z]+ \d+)(?: using|\.)"
)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What play has shown. The held object is always known.

    Attributes:
        shown: Receptacles whose contents were shown. They are remembered as they are now: only the agent
            changes them.
        placed: Pairs (object, receptacle) that the agent itself put together, shown or not.
        checked: Objects whose cleanness and temperature are known.
    """

    shown: frozenset[str] = frozenset()
    placed: frozenset[tuple[str, str]] = frozenset()
    checked: frozenset[str] = frozenset()


class InformedOracle:
    """Best actions under knowledge, in one game.

    Args:
        world: The game.
        node_limit: Largest number of search states kept.

    Raises:
        GameError: The game has a lamp that can be carried.
    """

    def __init__(self, world: World, node_limit: int = NODE_LIMIT) -> None:
        self.world = world
        self._goal = Oracle(world, node_limit)
        self._empty = Oracle(world, node_limit, Aim.EMPTY)
        part = {Aim.PAIR: Aim.PLACE, Aim.LOOK: Aim.HOLD}.get(aim_of(world))
        self._part = None if part is None else Oracle(world, node_limit, part)
        self._id_of = {name: key for key, name in world.names.items()}
        self._order = sorted(world.receptacles, key=lambda r: f"go to {world.names[r]}")

    # ------------------------------------------------------------------ what is known

    def read(self, observations: Iterable[str], knowledge: Knowledge | None = None) -> Knowledge:
        """Return what some observations teach, on top of what was known.

        Args:
            observations: Texts of the environment, in either wording: a whole episode's, or a window's.
            knowledge: What was known before them; nothing by default.
        """
        known = knowledge or Knowledge()
        shown, placed, checked = set(known.shown), set(known.placed), set(known.checked)
        ids = self._id_of
        for text in observations:
            shown.update(ids[name] for name in _SHOWN.findall(text) if name in ids)
            placed.update((ids[o], ids[r]) for o, r in _PLACED.findall(text) if o in ids and r in ids)
            checked.update(ids[name] for name in _TOLD.findall(text) if name in ids)
        return Knowledge(frozenset(shown), frozenset(placed), frozenset(checked))

    def known_state(self, state: State, knowledge: Knowledge) -> State:
        """Return a state without what is not known."""
        kept = frozenset(
            pair for pair in state.inside if pair[1] in knowledge.shown or pair in knowledge.placed
        )
        return state._replace(
            inside=kept,
            clean=state.clean & knowledge.checked,
            hot=state.hot & knowledge.checked,
            cool=state.cool & knowledge.checked,
        )

    def _closed(self, state: State, receptacle: str) -> bool:
        return receptacle in self.world.openable and receptacle not in state.opened

    # ------------------------------------------------------------------ what to do

    def distance(self, state: State, knowledge: Knowledge) -> int | None:
        """Return the least number of turns to the goal with what is known, or None where that is too little.

        Raises:
            SearchLimit: The search grew too large.
        """
        return self._goal.distance(self.known_state(state, knowledge))

    def best_actions(self, state: State, knowledge: Knowledge, wording: Style = "move") -> tuple[str, ...]:
        """Return all equally good commands, sorted.

        In this order: the shortest way to the goal where what is known suffices; the shortest way to free a
        hand that holds a useless object; what part of the task can be done already (place the first of two
        objects, fetch the object to look at); whatever shows the contents of an unseen receptacle soonest.

        Empty where the goal holds, where a useless object fits nowhere, and where nothing is left to explore.

        Args:
            state: The state; what is hidden in it is not used.
            knowledge: What play has shown.
            wording: ``move`` or ``put``.

        Raises:
            SearchLimit: The search grew too large.
        """
        known = self.known_state(state, knowledge)
        if self._goal.distance(known) is not None:
            return self._goal.optimal_actions(known, wording)
        if state.held is not None and state.held not in self.world.goal_objects:
            return self._empty.optimal_actions(known, wording)
        if self._part is not None and self._part.distance(known):
            return self._part.optimal_actions(known, wording)
        return self.explore(state, knowledge)

    def explore(self, state: State, knowledge: Knowledge) -> tuple[str, ...]:
        """Return all commands that lead soonest to an unseen receptacle, sorted.

        One that is here is opened, or examined where it is open. Otherwise each unseen one is as good as any
        other. Empty where all have been seen.
        """
        unseen = [r for r in self.world.receptacles if r not in knowledge.shown]
        here = [r for r in unseen if self.world.location_of[r] == state.location]
        return tuple(sorted(self.reveal(state, receptacle) for receptacle in here or unseen))

    def next_unseen(self, state: State, knowledge: Knowledge) -> str | None:
        """Return the unseen receptacle that comes next in a fixed sweep, or None where all have been seen.

        The sweep follows the sorted list of ``go to`` commands and wraps around. One that is here comes
        first, then the first one listed after the agent's receptacle.
        """
        world = self.world
        at = [i for i, r in enumerate(self._order) if world.location_of[r] == state.location]
        start = at[0] if at else 0
        swept = self._order[start:] + self._order[:start]
        swept.sort(key=lambda r: world.location_of[r] != state.location)
        return next((r for r in swept if r not in knowledge.shown), None)

    def reveal(self, state: State, receptacle: str) -> str:
        """Return the next command on the way to seeing what is in a receptacle."""
        name = self.world.names[receptacle]
        if self.world.location_of[receptacle] != state.location:
            return f"go to {name}"
        return f"open {name}" if self._closed(state, receptacle) else f"examine {name}"
