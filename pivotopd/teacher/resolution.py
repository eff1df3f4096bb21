"""From a teacher's free text to an action of the environment.

Paper App. B; see docs/method.md, Resolving actions. The first rule that gives exactly one admissible action
wins: equality in normal form, equality without articles, containment, highest word overlap. The paper does
not publish its overlap threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

OVERLAP: Final = 0.5
"""Least Jaccard overlap of words at which an action may win by overlap."""

_ARTICLES: Final = frozenset({"a", "an", "the"})
_MARKS: Final = ".,;:!?'\"`*()[]<>"


def resolve(written: str, admissible: Sequence[str] | None, normal_form: Callable[[str], str]) -> str | None:
    """Return the action that a text names, or None.

    Args:
        written: The teacher's text.
        admissible: Actions that the environment accepts there; None where the action space is open, and the
            text is taken as it is unless it is empty.
        normal_form: The environment's form in which actions are compared.
    """
    if admissible is None:
        return written.strip() or None
    for rule in (_equal(normal_form), _equal_words, _contained, _overlapping):
        found = list(dict.fromkeys(rule(written, admissible)))
        if len(found) == 1:
            return found[0]
    return None


_Rule = Callable[[str, Sequence[str]], list[str]]


def _equal(normal_form: Callable[[str], str]) -> _Rule:
    def rule(written: str, admissible: Sequence[str]) -> list[str]:
        wanted = normal_form(written)
        return [action for action in admissible if normal_form(action) == wanted]

    return rule


def _equal_words(written: str, admissible: Sequence[str]) -> list[str]:
    wanted = _words(written)
    return [action for action in admissible if wanted and _words(action) == wanted]


def _contained(written: str, admissible: Sequence[str]) -> list[str]:
    """Return the actions that hold the text, or of several words that the text holds, as whole words.

    An action of one word ("look") inside a sentence names nothing.
    """
    wanted = _words(written)
    if not wanted:
        return []
    return [
        action
        for action in admissible
        if _holds(words := _words(action), wanted) or (len(words) > 1 and _holds(wanted, words))
    ]


def _overlapping(written: str, admissible: Sequence[str]) -> list[str]:
    wanted = set(_words(written))
    scores = {action: _jaccard(wanted, set(_words(action))) for action in admissible}
    best = max(scores.values(), default=0.0)
    return [action for action, score in scores.items() if score == best] if best >= OVERLAP else []


def _jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0


def _holds(outer: Sequence[str], inner: Sequence[str]) -> bool:
    """Tell whether words occur in a row inside others."""
    size = len(inner)
    return any(outer[start : start + size] == inner for start in range(len(outer) - size + 1))


def _words(text: str) -> list[str]:
    """Return the lower-case words of a text without marks around them and without articles."""
    words = (word.strip(_MARKS) for word in text.lower().split())
    return [word for word in words if word and word not in _ARTICLES]
