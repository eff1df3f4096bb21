"""Rows that hold the same tokens as another one: they are computed once, and each gets the result.

A policy that plays one task several times meets the same states and says the same. What is drawn has a seed
of its own and is never shared; what follows from tokens alone is: keys and values of a prompt,
log-probabilities, and their gradient.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pivotopd.models.batching import Row


@dataclass(frozen=True, slots=True)
class Repeats:
    """Which of some rows are equal.

    Attributes:
        firsts: Index of the first row of each kind, ascending.
        kinds: For each row the place of its kind in ``firsts``.
    """

    firsts: tuple[int, ...]
    kinds: tuple[int, ...]

    @property
    def any(self) -> bool:
        """Whether a row is equal to an earlier one."""
        return len(self.firsts) < len(self.kinds)

    @property
    def later(self) -> list[int]:
        """Indices of the rows that are equal to an earlier one."""
        return [row for row, kind in enumerate(self.kinds) if self.firsts[kind] != row]

    @property
    def groups(self) -> list[list[int]]:
        """The rows of each kind, ascending."""
        found: list[list[int]] = [[] for _ in self.firsts]
        for row, kind in enumerate(self.kinds):
            found[kind].append(row)
        return found


def repeats_of(keys: Sequence[Hashable]) -> Repeats:
    """Return which of some keys are equal."""
    places: dict[Hashable, int] = {}
    firsts: list[int] = []
    kinds: list[int] = []
    for index, key in enumerate(keys):
        if key not in places:
            places[key] = len(firsts)
            firsts.append(index)
        kinds.append(places[key])
    return Repeats(tuple(firsts), tuple(kinds))


def tokens_of(row: Row) -> Hashable:
    """Return what decides a row's log-probabilities: its prompt and its response."""
    return tuple(row.prompt_ids), tuple(row.response_ids)
