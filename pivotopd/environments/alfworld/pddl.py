"""The surface of a PDDL problem: its sections and its init facts, with no idea of what they mean."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from pivotopd.errors import GameError

MEND: Final = "leave this game out, or take it again from the ALFWorld release or the generator"

ARITY: Final[Mapping[str, int]] = {
    "atlocation": 2, "holds": 2, "holdsany": 1, "receptacletype": 2, "objecttype": 2, "cancontain": 2,
    "receptacleatlocation": 2, "objectatlocation": 2, "inreceptacle": 2, "inreceptacleobject": 2,
    "isreceptacleobject": 1, "openable": 1, "opened": 1, "pickupable": 1, "cleanable": 1, "heatable": 1,
    "coolable": 1, "toggleable": 1, "sliceable": 1, "isclean": 1, "ishot": 1, "iscool": 1, "issliced": 1,
    "istoggled": 1, "ison": 1, "moveable": 1, "full": 1, "checked": 1, "examined": 1,
    "wasinreceptacle": 2,
}  # fmt: skip
"""Every predicate of the domain and its number of arguments; those after ``istoggled`` have no effect."""

_PAREN = re.compile(r"[()]")
_COMMENT = re.compile(r";[^\n]*")
_FOREIGN = re.compile(r"[^a-z0-9_+\-.?=:()\s]")
_NAME = re.compile(r"[^\s()]*")
_FLAT = re.compile(r"\([^()]*\)")
_FACT = re.compile(r"\(([^()]*)\)")


def unusable(what: str, where: str) -> GameError:
    """Return the error for a game that cannot be used."""
    return GameError(what, where=where, mend=MEND)


class Facts:
    """The init facts by predicate: sets, since real problems repeat themselves.

    Attributes:
        where: What to name in an error.
        ids: Every id that the facts speak of, types left out.
    """

    def __init__(self, init: str, declared: frozenset[str], where: str) -> None:
        if _FLAT.sub("", init).strip():
            raise unusable("The :init section holds more than plain facts.", where)
        self.where = where
        self._pairs: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        self._ones: defaultdict[str, set[str]] = defaultdict(set)
        for text in _FACT.findall(init):
            name, *arguments = text.split() or [""]
            if ARITY.get(name) != len(arguments):
                raise unusable(f"The init fact ({text.strip()[:80]}) is not one of ALFWorld's domain.", where)
            if len(arguments) == 2:
                self._pairs[name].add((arguments[0], arguments[1]))
            else:
                self._ones[name].add(arguments[0])
        self.ids = self._check_declared(declared)

    def pairs(self, predicate: str) -> frozenset[tuple[str, str]]:
        """Return the facts of a two-place predicate."""
        return frozenset(self._pairs.get(predicate, ()))

    def ones(self, predicate: str) -> frozenset[str]:
        """Return the facts of a one-place predicate."""
        return frozenset(self._ones.get(predicate, ()))

    def function(self, predicate: str) -> dict[str, str]:
        """Return a two-place predicate as a mapping; refuse two values for one id."""
        pairs = self._pairs.get(predicate, set())
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            twice = sorted(key for key, value in pairs if mapping[key] != value)[0]
            raise unusable(f"{twice} has two values of {predicate}.", self.where)
        return mapping

    def _check_declared(self, declared: frozenset[str]) -> frozenset[str]:
        """Return every id that the facts speak of, types left out; refuse undeclared ones."""
        ids: set[str] = set()
        types: set[str] = set()
        for name, pairs in self._pairs.items():
            for first, second in pairs:
                (types if name == "cancontain" else ids).add(first)
                (types if name in {"cancontain", "receptacletype", "objecttype"} else ids).add(second)
        for ones in self._ones.values():
            ids |= ones
        unknown = (ids | types) - declared
        if unknown:
            raise unusable(f"{min(unknown)} is in :init but not in :objects.", self.where)
        return frozenset(ids)


def sections_of(problem: str, where: str) -> dict[str, str]:
    """Cut ``(define (problem N) (:domain D) (:objects ..) (:init ..) (:goal ..))`` into its sections."""
    text = _COMMENT.sub("", problem.lower())
    foreign = _FOREIGN.search(text)
    if foreign:
        raise unusable(f"The problem holds the character {foreign.group()!r}.", where)
    sections: dict[str, str] = {}
    depth = start = closed = 0
    for match in _PAREN.finditer(text):
        if closed:
            raise unusable("The problem goes on after its last bracket.", where)
        if match.group() == "(":
            depth += 1
            if depth == 2:
                start = match.end()
            continue
        depth -= 1
        if depth == 1:
            name, body = _head(text[start : match.start()])
            if name in sections:
                raise unusable(f"The problem has two sections {name[:40]!r}.", where)
            sections[name] = body
        elif depth <= 0:
            closed = match.end()
            if depth < 0:
                break
    if depth or not closed or text[closed:].strip():
        raise unusable("The brackets of the problem do not match.", where)
    _check_sections(sections, text, where)
    return {name.removeprefix(":"): body for name, body in sections.items()}


def _head(section: str) -> tuple[str, str]:
    """Part a section into its name and the rest."""
    body = section.lstrip()
    name = _NAME.match(body)
    end = name.end() if name else 0
    return body[:end], body[end:]


def _check_sections(sections: Mapping[str, str], text: str, where: str) -> None:
    needed = {"problem", ":domain", ":objects", ":init", ":goal"}
    if set(sections) != needed or not re.match(r"\s*\(\s*define\s*\(", text):
        odd = sorted(set(sections) ^ needed)
        raise unusable(
            f"The problem lacks, or has beyond the usual, the sections {', '.join(odd)[:80]}.", where
        )
    if sections[":domain"].strip() != "alfred":
        raise unusable(
            f"The problem is of the domain {sections[':domain'].strip()[:40]!r}, not alfred.", where
        )


def declared(objects: str) -> frozenset[str]:
    """Return the names of ``:objects``; their types do not matter to play."""
    return frozenset(re.sub(r"\s-\s+\S+", " ", objects).split())
