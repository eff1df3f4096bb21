"""The student's text: the two prompt forms by name, and the phrases that a tiny tokenizer should know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

from pivotopd.environments.alfworld.compact import CompactWording
from pivotopd.environments.alfworld.full import FullWording
from pivotopd.environments.alfworld.problem_text import TEMPLATES
from pivotopd.environments.alfworld.vocabulary import OBJECTS, RECEPTACLES
from pivotopd.environments.base import Wording

PromptForm = Literal["full", "compact"]
"""``full`` is the paper's prompt, ``compact`` the tiny student's."""

NUMBERS: Final = 27
"""Largest number of a receptacle in the official games."""

_VERBS: Final = (
    "go to", "open", "close", "take", "move", "put", "clean", "heat", "cool", "examine", "use", "slice",
    "look", "inventory", "help",
)  # fmt: skip
_JOINTS: Final = (" from", " to", " with", " in/on", ":", ".", " nothing", " closed")
_TOLD: Final = (
    " at", " got", " left", " did", " room", " no effect", " closed", " lit", " hand:", " facing", " plain",
    " help", "",
)  # fmt: skip
_PROMPT: Final = (
    *(f"\n-{told}" for told in _TOLD), *(f"\nnow{told}" for told in _TOLD),
    "\nhere:", "\nplaces:", "\ndo: look; inventory", "\ndo: ", "\n<hint>", "\n<lesson>",
)  # fmt: skip
_REPLY: Final = (
    "<think>", "</think>", "<action>", "</action>", "</think><action>", "<think>want", "; see", "; hold",
    "; next", " instead", "; for",
    " normal", " hot", " cold", " and",
)  # fmt: skip


def make_wording(form: PromptForm) -> Wording:
    """Return the wording of a prompt form."""
    return FullWording() if form == "full" else CompactWording()


def phrases() -> list[str]:
    """Return the phrases of a tiny student's tokenizer, each once, in a fixed order.

    A name and its number are one phrase where the number is small, as it is in generated games; larger
    numbers are two phrases, and anything else is spelled in bytes.
    """
    return list(dict.fromkeys(_all_phrases()))


def _all_phrases() -> Iterator[str]:
    yield from (*_REPLY, *_PROMPT, *_JOINTS)
    for verb in _VERBS:
        yield from (verb, f" {verb}", f" > {verb}", f"; {verb}")
    for templates in TEMPLATES.values():
        for template in templates:
            yield from (piece.rstrip() for piece in re.split(r"\{\w+\}", template) if piece.strip())
    for kind in sorted(RECEPTACLES):
        yield f" {kind}"
        yield from (f" {kind} {number}" for number in range(1, 7))
    for kind in sorted(OBJECTS):
        yield f" {kind}"
        yield from (f" {kind} {number}" for number in range(1, 4))
    yield from (f" {number}" for number in range(1, NUMBERS + 1))
