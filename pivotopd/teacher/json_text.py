"""JSON objects inside the text of a language model: fenced or bare, with chatter around, nearly right.

Nothing is evaluated. Every text gives a list, also a long or hostile one, in time that grows with its length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

REPAIRS: Final = 16
"""Most objects a text that are repaired: each costs a pass over the rest of the text."""

STARTS: Final = 1_000
"""Most opening braces a text at which an object is looked for."""

_START: Final = re.compile(r"\{(?=\s*[\"'}])")
_DECODER: Final = json.JSONDecoder(strict=False)  # strict would refuse line breaks inside strings


def objects(text: str, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a text that have at least one of some keys, in order.

    Where an object is not JSON, commas before a closing bracket are dropped and single-quoted strings are
    taken for double-quoted ones.

    Args:
        text: Any text.
        keys: The keys looked for.
    """
    at, repairs, starts = 0, 0, 0
    last = max((text.rfind(key) for key in keys), default=-1)
    while starts < STARTS and (match := _START.search(text, at)) and match.start() < last:
        starts += 1
        found, end = _read(text, match.start())
        if found is None and repairs < REPAIRS:
            repairs += 1
            found, end = _read_repaired(text, match.start())
        if found is not None and any(key in found for key in keys):
            yield found
            at = end
        else:
            at = match.start() + 1  # also looks inside an object that only wraps another


def _read(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start
    return (value, end) if isinstance(value, dict) else (None, start)


def _read_repaired(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    repaired, end = _repair(text, start)
    if repaired is None:
        return None, start
    found, _ = _read(repaired, 0)
    return found, end


def _repair(text: str, start: int) -> tuple[str | None, int]:
    """Return the object at a position as better JSON, and where it ends; None where it does not end."""
    out: list[str] = []
    depth, at = 0, start
    while at < len(text):
        character = text[at]
        if character in "\"'":
            string, at = _string(text, at)
            out.append(string)
            continue
        if character in "}]":
            _drop_comma(out)
        depth += (character in "{[") - (character in "}]")
        out.append(character)
        at += 1
        if depth == 0:
            return "".join(out), at
    return None, start


def _string(text: str, start: int) -> tuple[str, int]:
    """Return a string literal as JSON, and where it ends.

    A single quote ends a string only where the next letter is one that may follow: "don't" has none.
    """
    quote, at = text[start], start + 1
    inside: list[str] = []
    while at < len(text):
        character = text[at]
        if character == "\\" and at + 1 < len(text):
            follows = text[at + 1]
            inside.append(follows if follows == "'" else character + follows)
            at += 2
        elif character == quote and (quote == '"' or _may_end(text, at + 1)):
            return '"' + "".join(inside) + '"', at + 1
        else:
            inside.append('\\"' if character == '"' else character)
            at += 1
    return '"' + "".join(inside) + '"', at


def _may_end(text: str, at: int) -> bool:
    following = text[at : at + 64].lstrip()
    return not following or following[0] in ",:}]"


def _drop_comma(out: list[str]) -> None:
    index = len(out) - 1
    while index >= 0 and out[index].isspace():
        index -= 1
    if index >= 0 and out[index] == ",":
        del out[index]
