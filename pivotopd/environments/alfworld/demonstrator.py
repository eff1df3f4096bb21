"""A household agent with one gap, which reads nothing but the student's prompt.

It sweeps the places in a fixed order, takes, prepares and delivers what the task asks for. The gap: where
it sees the object's lookalike and not the object, it takes the lookalike; and with a wrong object in hand it
goes on sweeping and never puts it down. Everything else it does well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pivotopd.environments.alfworld.compact import place_here, rotated
from pivotopd.environments.alfworld.goals import Goal
from pivotopd.environments.alfworld.vocabulary import RECEPTACLES, kind_of
from pivotopd.environments.base import View

_TAKE: Final = re.compile(r"take (.+) from (.+)")
_LEAVE: Final = re.compile(r"(?:move (.+) to|put (.+) in/on) .+")
_SHOWN: Final = re.compile(r"(?:On|In) (?:the ([a-z]+ \d+)|it), you see (.+)\.$")
_NAMED: Final = re.compile(r"[a-z]+ \d+")
_FRESH_TURNS: Final = 2
"""Turns within which an object that was put down is not taken again."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a prompt tells about a turn.

    Attributes:
        here: The current place, or None in the middle of the room.
        closed: The current place is closed.
        held: The object in the hand, or None.
        takeable: Objects that can be taken here, with the action that takes each.
        walk: The other places, the next one first.
        seen: Place of each object that the window showed elsewhere.
        treated: Objects on which the window shows the task's tool action.
        left: Objects that were put down within the last turns.
        leave: The action that puts the held object down here, or None.
    """

    here: str | None
    closed: bool
    held: str | None
    takeable: Mapping[str, str]
    walk: tuple[str, ...]
    seen: Mapping[str, str]
    treated: frozenset[str]
    left: frozenset[str]
    leave: str | None


def read(view: View, tool: str | None) -> Situation:
    """Read a prompt's facts.

    Args:
        view: The view; its admissible actions must be known.
        tool: The task's tool action, if it has one.
    """
    admissible = view.admissible or ()
    here = place_here(admissible)
    takeable = {}
    held = None
    for action in admissible:
        taken = _TAKE.fullmatch(action)
        if taken:
            takeable[taken[1]] = action
        elif action.startswith("examine ") and kind_of(action[8:]) not in RECEPTACLES:
            held = action[8:]
    observations = [seen for seen, _ in view.history] + [view.observation]
    seen: dict[str, str] = {}
    for observation in observations:
        _note(observation, seen)
    treated = {o.split(" using ")[0].removeprefix(f"You {tool} the ") for o in observations
               if tool and o.startswith(f"You {tool} the ")}  # fmt: skip
    left = [m[1] or m[2] for _, action in view.history[-_FRESH_TURNS:] if (m := _LEAVE.fullmatch(action))]
    return Situation(
        here=here,
        closed=f"open {here}" in admissible,
        held=held,
        takeable=takeable,
        walk=tuple(rotated(admissible)),
        seen={thing: place for thing, place in seen.items() if place != here and thing != held},
        treated=frozenset(treated),
        left=frozenset(left),
        leave=next((action for action in admissible if _LEAVE.fullmatch(action)), None),
    )


def _note(observation: str, seen: dict[str, str]) -> None:
    """Note where an observation shows objects, and forget what it shows to be gone."""
    shown = _SHOWN.search(observation)
    if shown:
        place = shown[1] or _named_first(observation)
        for thing in [thing for thing, where in seen.items() if where == place]:
            del seen[thing]
        seen.update((thing, place) for thing in _NAMED.findall(shown[2]))
    elif observation.startswith("You pick up the "):
        seen.pop(observation.removeprefix("You pick up the ").split(" from ")[0], None)


def _named_first(observation: str) -> str:
    """Return the first receptacle that an observation names."""
    found = _NAMED.search(observation)
    return found[0] if found else ""


@dataclass(frozen=True)
class Demonstrator:
    """Plays one task.

    Args:
        target: Kind of the object that the task asks for, as displayed.
        place: Kind of the receptacle that it belongs in.
        tool: The tool action that it needs first, or None.
        tool_place: Kind of the receptacle that the tool action needs, or None.
        lookalike: Kind that is taken for the target, or None.
    """

    target: str
    place: str
    tool: str | None
    tool_place: str | None
    lookalike: str | None

    def gap_action(self, now: Situation) -> str:
        """Return what the agent does, gap included."""
        if now.held is None and not self._find(now, self.target):
            trap = self._find(now, self.lookalike)
            if trap:
                return now.takeable[trap]
            return self._search(now)
        if now.held is not None and kind_of(now.held) != self.target:
            return f"go to {now.walk[0]}"
        return self.informed_action(now)

    def informed_action(self, now: Situation) -> str:
        """Return what an agent without the gap would do, knowing only what the prompt shows."""
        if now.held is None:
            return self._fetch(now)
        if kind_of(now.held) == self.target:
            return self._deliver(now, now.held)
        return now.leave or self._search(now)

    def thought(self, now: Situation, action: str) -> str:
        """Return the summary of a situation that goes before an action, whoever chose the action."""
        if now.held is not None:
            wrong = kind_of(now.held) != self.target
            parts = [f"; hold {now.held}", " instead" if wrong else f"; for {self._wanted(now, now.held)}"]
        else:
            trap = self._find(now, self.lookalike)
            found = self._find(now, self.target) or (f"{trap} instead" if trap else "nothing")
            parts = [f"; see {found}"]
        if action.startswith("go to "):
            parts.append(f"; next {action.removeprefix('go to ')}")
        return f"want {self.target}{''.join(parts)}"

    def response(self, now: Situation, action: str) -> str:
        """Return the reply that commits to an action."""
        return f"<think>{self.thought(now, action)}</think><action>{action}</action>"

    def _find(self, now: Situation, kind: str | None) -> str | None:
        """Return an object of a kind that can be taken here and was not just put down."""
        return next((o for o in now.takeable if kind_of(o) == kind and o not in now.left), None)

    def _known(self, now: Situation) -> str | None:
        """Return a target that the window showed at another place."""
        return next((o for o in now.seen if kind_of(o) == self.target and o not in now.left), None)

    def _fetch(self, now: Situation) -> str:
        found = self._find(now, self.target)
        if found:
            return now.takeable[found]
        known = self._known(now)
        if known and now.seen[known] in now.walk:
            return f"go to {now.seen[known]}"
        return self._search(now)

    @staticmethod
    def _search(now: Situation) -> str:
        return f"open {now.here}" if now.closed else f"go to {now.walk[0]}"

    def _wanted(self, now: Situation, held: str) -> str:
        """Return the kind of place where the target in the hand is needed next."""
        return self.place if self.tool_place is None or held in now.treated else self.tool_place

    def _deliver(self, now: Situation, held: str) -> str:
        wanted = self._wanted(now, held)
        if now.here is not None and kind_of(now.here) == wanted:
            if wanted == self.tool_place and held not in now.treated:
                return f"{self.tool} {held} with {now.here}"
            return now.leave or self._search(now)
        return next(
            (f"go to {place}" for place in now.walk if kind_of(place) == wanted), f"go to {now.walk[0]}"
        )


def demonstrator_of(goal: Goal, lookalike: str | None) -> Demonstrator:
    """Return the demonstrator of a task that asks to bring one object to a place.

    Args:
        goal: The task, of one of the four types with one object and a place.
        lookalike: Display kind that is taken for the object, or None.
    """
    tools = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
    return Demonstrator(
        target=goal.object_type.removesuffix("type"),
        place=(goal.receptacle_type or "").removesuffix("type"),
        tool=goal.tool,
        tool_place=tools.get(goal.tool or ""),
        lookalike=lookalike,
    )
