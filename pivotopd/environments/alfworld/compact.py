"""A short prompt for tiny students: the same facts as the paper's prompt in some fifty phrases.

The places to go to are rotated, so that the one after the current place comes first: a model learns to copy
long before it learns to choose. What is here is read from the admissible actions alone, so a prompt never
depends on more than its view.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from pivotopd.environments.alfworld.replies import ReplyRules
from pivotopd.environments.alfworld.vocabulary import RECEPTACLES, kind_of
from pivotopd.environments.base import View

_HINT_MARK: Final = "<hint>"
_LESSON_MARK: Final = "<lesson>"
_SKILL_MARK: Final = "<skill>"
_GO: Final = "go to "
_TASK: Final = "Your task is to: "

_THING: Final = r"(?P<name>[a-z]+ \d+)"
_LIST: Final = r"(?P<list>nothing|a [a-z]+ \d+(?:, (?:and )?a [a-z]+ \d+)*)\."
_SHORT: Final = tuple(
    (re.compile(pattern), short)
    for pattern, short in (
        (rf"(?:You arrive at [a-z]+ \d+\. )?(?:On|In) the {_THING}, you see {_LIST}", " at {name}: {list}"),
        (rf"(?:You arrive at [a-z]+ \d+\. )?The {_THING} is closed\.", " at {name}: closed"),
        (rf"(?:You (?:arrive at|open the) [a-z]+ \d+\. )?The {_THING} is open\. In it, you see {_LIST}",
         " at {name}: {list}"),
        (rf"You close the {_THING}\.", " closed {name}"),
        (rf"You pick up the {_THING} from the [a-z]+ \d+\.", " got {name}"),
        (rf"You (?:move|put) the {_THING} (?:to|in/on) the [a-z]+ \d+\.", " left {name}"),
        (rf"You (?P<tool>clean|heat|cool) the {_THING} using the [a-z]+ \d+\.", " did {tool} {name}"),
        (rf"You turn on the {_THING}\.", " lit {name}"),
        (r"You are carrying: a (?P<name>[a-z]+ \d+)\.", " hand: {name}"),
        (r"You are not carrying anything\.", " hand: nothing"),
        (rf"You are facing the {_THING}\. Next to it, you see {_LIST}", " facing {name}: {list}"),
        (r"Nothing happens\.", " no effect"),
        (rf"There's nothing special about {_THING}\.", " plain {name}"),
        (rf"This is a (?P<list>[a-z ]+) {_THING}\.(?: In it, you see nothing\.)?", " {list} {name}"),
    )
)  # fmt: skip
"""Known observations, and how each is told in short. All others are shown as they are."""

_ROOM: Final = "You are in the middle of a room. Looking quickly around you, you see "
_HELP: Final = "Available commands:"
_ARTICLE: Final = re.compile(r"(?:,? and|,)? ?\ba (?=[a-z]+ \d)")
_PAIRED: Final = re.compile(r"take (?P<thing>.+) from (?P<place>.+)")


class CompactWording(ReplyRules):
    """The prompt of tiny students."""

    def prompt(self, view: View) -> str:
        """Render a view as one user message; a hint stands last, a lesson after the task, skills before it.

        A hint that only asks to reflect is the mark alone.
        """
        lines = [f"{_SKILL_MARK} {_bare(skill)}" for skill in view.skills]
        lines.append(_bare(view.instruction.removeprefix(_TASK)))
        if view.lesson is not None:
            lines.append(f"{_LESSON_MARK} {view.lesson}")
        lines += [f"-{short(_bare(seen))} > {_bare(action)}" for seen, action in view.history]
        lines.append(f"now{short(_bare(view.observation))}")
        if view.admissible is not None:
            here = place_here(view.admissible)
            ways = "".join(f" {place}" for place in rotated(view.admissible))
            lines += [f"here: {here}"] if here else []
            lines += [f"places:{ways}", f"do: {'; '.join(_others(view.admissible))}"]
        if view.hint is not None:
            lines.append(_HINT_MARK + view.hint)
        return "\n".join(lines)

    def privileged(self, prompt: str, *, skills_allowed: bool = False) -> bool:
        """Tell whether a prompt holds a hint, a lesson, or skills that it must not hold."""
        return (
            _HINT_MARK in prompt or _LESSON_MARK in prompt or (_SKILL_MARK in prompt and not skills_allowed)
        )


@lru_cache(maxsize=65_536)
def short(observation: str) -> str:
    """Tell an observation in short, with a leading blank."""
    if _ROOM in observation:
        return " room"
    if observation.startswith(_HELP):
        return " help"
    for pattern, form in _SHORT:
        match = pattern.fullmatch(observation)
        if match:
            parts = match.groupdict()
            if "list" in parts:
                parts["list"] = _ARTICLE.sub(" ", parts["list"]).strip()
            return form.format_map(parts)
    return f" {observation}"


def rotated(admissible: tuple[str, ...]) -> list[str]:
    """Return the places that one can go to, in the order of a walk that starts at the current place.

    Places are ordered by kind and number; the one after the current place comes first. Where the current
    place is unknown, the walk starts at the front.
    """
    here = place_here(admissible)
    places = sorted({a.removeprefix(_GO) for a in admissible if a.startswith(_GO)}, key=_by_number)
    if here is None:
        return places
    mark = _by_number(here)
    return [p for p in places if _by_number(p) > mark] + [p for p in places if _by_number(p) <= mark]


def place_here(admissible: tuple[str, ...]) -> str | None:
    """Return the receptacle that the agent is at: it can be examined; None in the middle of the room.

    Of several receptacles at one place the first by kind and number is named.
    """
    here = [a.removeprefix("examine ") for a in admissible if a.startswith("examine ")]
    return min((name for name in here if kind_of(name) in RECEPTACLES), key=_by_number, default=None)


@lru_cache(maxsize=4_096)
def _by_number(name: str) -> tuple[str, int]:
    """Order names by kind, then by number: ``cabinet 2`` before ``cabinet 10``."""
    digits = name.rpartition(" ")[2]
    return kind_of(name), int(digits) if digits.isdecimal() else 0


def _others(admissible: tuple[str, ...]) -> list[str]:
    """List all actions but ``go to`` and ``help``: what is always there first, things to take together."""
    always = [action for action in ("look", "inventory") if action in admissible]
    others: list[str] = []
    things: dict[str, list[str]] = {}
    for action in admissible:
        taken = _PAIRED.fullmatch(action)
        if taken:
            things.setdefault(taken["place"], []).append(taken["thing"])
        elif not action.startswith(_GO) and action not in {"look", "inventory", "help"}:
            others.append(action)
    return always + others + [f"take {' '.join(names)} from {place}" for place, names in things.items()]


def _bare(text: str) -> str:
    """Take the marks of privileged text out of played text, so that no plain prompt can look privileged."""
    for mark in (_HINT_MARK, _LESSON_MARK, _SKILL_MARK):
        text = text.replace(mark, f"({mark.strip('<>')})")
    return text
