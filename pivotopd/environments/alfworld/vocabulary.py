"""The names of ALFWorld's receptacles and objects, as they are displayed, without their numbers."""

from __future__ import annotations

from typing import Final

RECEPTACLES: Final = frozenset(
    """
    armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable drawer dresser
    fridge garbagecan handtowelholder laundryhamper microwave ottoman paintinghanger safe shelf sidetable sinkbasin
    sofa stoveburner toaster toilet toiletpaperhanger towelholder tvstand
    """.split()
)
"""Kinds of receptacle that the official games have, and the generated ones."""

OBJECTS: Final = frozenset(
    """
    alarmclock apple applesliced baseballbat basketball boots book bowl box bread breadsliced butterknife candle
    cd cellphone cloth creditcard cup desklamp dishsponge egg fork floorlamp glassbottle handtowel houseplant
    keychain kettle knife ladle laptop lettuce lettucesliced mug newspaper painting pan papertowelroll pen pencil
    peppershaker pillow plate plunger poster pot potato potatosliced remotecontrol saltshaker scrubbrush soapbar
    soapbottle spatula spoon spraybottle statue teddybear tennisracket tissuebox toiletpaper tomato tomatosliced
    towel vase watch wateringcan winebottle
    """.split()
)
"""Kinds of object that can be carried or used in the official games, and in the generated ones."""


def kind_of(name: str) -> str:
    """Return the kind of a display name: ``cabinet`` for ``cabinet 12``."""
    kind, blank, number = name.rpartition(" ")
    return kind if blank and number.isdigit() else name
