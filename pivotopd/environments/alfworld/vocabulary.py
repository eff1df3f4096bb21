"""The names of ALFWorld's receptacles and objects, as they are displayed, without their numbers."""

from __future__ import annotations

from typing import Final

_RECEPTACLES: Final = (
    "armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable"
    " drawer dresser fridge garbagecan handtowelholder laundryhamper microwave ottoman paintinghanger"
    " safe shelf sidetable sinkbasin sofa stoveburner toaster toilet toiletpaperhanger towelholder"
    " tvstand"
)
_OBJECTS: Final = (
    "alarmclock apple applesliced baseballbat basketball book boots bowl box bread breadsliced"
    " butterknife candle cd cellphone cloth creditcard cup desklamp dishsponge egg floorlamp fork"
    " glassbottle handtowel houseplant kettle keychain knife ladle laptop lettuce lettucesliced mug"
    " newspaper painting pan papertowelroll pen pencil peppershaker pillow plate plunger poster pot"
    " potato potatosliced remotecontrol saltshaker scrubbrush soapbar soapbottle spatula spoon"
    " spraybottle statue teddybear tennisracket tissuebox toiletpaper tomato tomatosliced towel vase"
    " watch wateringcan winebottle"
)

RECEPTACLES: Final = frozenset(_RECEPTACLES.split())
"""Kinds of receptacle that the official games have, and the generated ones."""

OBJECTS: Final = frozenset(_OBJECTS.split())
"""Kinds of object that can be carried or used in the official games, and in the generated ones."""


def kind_of(name: str) -> str:
    """Return the kind of a display name: ``cabinet`` for ``cabinet 12``."""
    kind, blank, number = name.rpartition(" ")
    return kind if blank and number.isdigit() else name
