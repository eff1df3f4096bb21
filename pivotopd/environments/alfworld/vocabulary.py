"""The names of ALFWorld's receptacles and objects, as they are displayed, without their numbers."""

from __future__ import annotations

from typing import Final

from pivotopd.environments.alfworld.rooms import LAMPS, ROOMS

_OFFICIAL_RECEPTACLES: Final = "paintinghanger toaster"
_OFFICIAL_OBJECTS: Final = (
    "applesliced breadsliced houseplant lettucesliced painting poster potatosliced tomatosliced"
)
"""What the official games have and the generated ones have not."""

RECEPTACLES: Final = frozenset(_OFFICIAL_RECEPTACLES.split()) | {
    kind.lower() for room in ROOMS.values() for kind in room.receptacles
}
"""Kinds of receptacle that the official games have, and the generated ones."""

OBJECTS: Final = frozenset(_OFFICIAL_OBJECTS.split()) | {
    kind.lower() for room in ROOMS.values() for kind in (*room.objects, *room.oddments, *LAMPS)
}
"""Kinds of object that can be carried or used in the official games, and in the generated ones."""


def kind_of(name: str) -> str:
    """Return the kind of a display name: ``cabinet`` for ``cabinet 12``."""
    kind, blank, number = name.rpartition(" ")
    return kind if blank and number.isdigit() else name
