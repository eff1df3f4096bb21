"""The six goals of ALFWorld, read from a problem's ``:goal`` section."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pivotopd.errors import GameError

_PLACE = "(and (exists (?r - receptacle) (exists (?o - object) (and {0}))))"
_KIND = "(objecttype ?o OBJ) (receptacletype ?r RECEP)"
_PUT = "(inreceptacle ?o ?r)"

_TEMPLATES: Final = {
    "pick_and_place_simple": _PLACE.format(f"{_PUT} {_KIND}"),
    "pick_clean_then_place_in_recep": _PLACE.format(f"(cleanable ?o) {_KIND} (isclean ?o) {_PUT}"),
    "pick_heat_then_place_in_recep": _PLACE.format(f"(heatable ?o) {_KIND} (ishot ?o) {_PUT}"),
    "pick_cool_then_place_in_recep": _PLACE.format(f"(coolable ?o) {_KIND} (iscool ?o) {_PUT}"),
    "pick_two_obj_and_place": (
        "(and (exists (?r - receptacle) (exists (?o1 - object) (and (objecttype ?o1 OBJ)"
        " (receptacletype ?r RECEP) (inreceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2))"
        " (objecttype ?o2 OBJ) (receptacletype ?r RECEP) (inreceptacle ?o2 ?r)))))))"
    ),
    "look_at_obj_in_light": (
        "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objecttype ?ot LAMP)"
        " (toggleable ?ot) (istoggled ?ot) (receptacleatlocation ?r ?l) (atlocation ?a ?l)"
        " (inreceptacle ?ot ?r))) (exists (?o - object ?a - agent) (and (objecttype ?o OBJ)"
        " (holds ?a ?o))))"
    ),
}
TASK_TYPES: Final = tuple(_TEMPLATES)
_TOOLS: Final = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}
_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class Goal:
    """What wins a game; type names in lower case, as the facts have them.

    Attributes:
        task_type: ALFWorld's name of the task type.
        object_type: Type of the object to place, or to hold under the lamp.
        receptacle_type: Type of the receptacle it belongs in; None for ``look_at_obj_in_light``.
        lamp_type: Type of the lamp; None for all others.
    """

    task_type: str
    object_type: str
    receptacle_type: str | None
    lamp_type: str | None

    @property
    def tool(self) -> str | None:
        """The tool action that the object must have seen: clean, heat, cool, or None."""
        return _TOOLS.get(self.task_type)

    @property
    def ability(self) -> str | None:
        """The predicate that the object must have for it: cleanable, heatable, coolable, or None."""
        return f"{self.tool}able" if self.tool else None

    @property
    def count(self) -> int:
        """How many different objects must lie in one receptacle."""
        return 2 if self.task_type == "pick_two_obj_and_place" else 1


def _pattern(template: str) -> re.Pattern[str]:
    """Turn a template into a pattern over single-spaced tokens; a type that occurs twice must agree."""
    seen: set[str] = set()
    parts = []
    for token in _TOKEN.findall(template):
        if token not in {"OBJ", "RECEP", "LAMP"}:
            parts.append(re.escape(token))
        else:
            parts.append(f"(?P={token})" if token in seen else rf"(?P<{token}>[^\s()?]+)")
            seen.add(token)
    return re.compile(" ".join(parts))


_PATTERNS: Final = {task_type: _pattern(template) for task_type, template in _TEMPLATES.items()}


def parse_goal(section: str, where: str) -> Goal:
    """Read the content of a lower-cased ``:goal`` section.

    Args:
        section: What stands between ``(:goal`` and its closing bracket.
        where: What to name in an error.

    Raises:
        GameError: The goal has none of the six shapes.
    """
    text = " ".join(_TOKEN.findall(section))
    for task_type, pattern in _PATTERNS.items():
        match = pattern.fullmatch(text)
        if match:
            types = match.groupdict()
            return Goal(task_type, types["OBJ"], types.get("RECEP"), types.get("LAMP"))
    raise GameError(
        "The goal is none of ALFWorld's six.",
        where=where,
        mend="use games of the six task types: " + ", ".join(TASK_TYPES),
    )
