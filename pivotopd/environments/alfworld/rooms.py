"""What generated rooms are made of: receptacles, objects, and what fits where.

Names are ALFWorld's type names without ``Type``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal


def _names(text: str) -> tuple[str, ...]:
    """Split a list of type names."""
    return tuple(text.split())


Room = Literal["kitchen", "bedroom", "bathroom", "livingroom"]

OPENABLE: Final = frozenset(["Cabinet", "Drawer", "Fridge", "Microwave", "Safe", "LaundryHamper"])
CLEANABLE: Final = frozenset(
    _names(
        "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan "
        "Plate Pot Potato SoapBar Spatula Spoon Tomato"
    )
)
HEATABLE: Final = frozenset(["Apple", "Bread", "Cup", "Egg", "Mug", "Plate", "Potato", "Tomato"])
COOLABLE: Final = frozenset(
    _names("Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle")
)
SLICEABLE: Final = frozenset(["Apple", "Bread", "Egg", "Lettuce", "Potato", "Tomato"])
VESSELS: Final = frozenset(["Bowl", "Box", "Cup", "Mug", "Pan", "Plate", "Pot"])
LAMPS: Final = ("DeskLamp", "FloorLamp")

SURFACES: Final = frozenset(
    [
        "CounterTop",
        "DiningTable",
        "Shelf",
        "Desk",
        "Dresser",
        "SideTable",
        "CoffeeTable",
        "TVStand",
        "Cart",
        "Ottoman",
    ]
)
"""Where a lamp can stand."""

LOOKALIKES: Final[Mapping[str, str]] = {
    one: other
    for pair in (
        ("Apple", "Tomato"), ("Bread", "Plate"), ("Potato", "Egg"), ("Mug", "Cup"), ("Fork", "Spoon"),
        ("Knife", "ButterKnife"), ("Pan", "Pot"), ("SaltShaker", "PepperShaker"), ("Spatula", "Ladle"),
        ("Pen", "Pencil"), ("Book", "Newspaper"), ("CellPhone", "RemoteControl"), ("KeyChain", "Watch"),
        ("CD", "CreditCard"), ("Pillow", "TeddyBear"), ("SoapBar", "DishSponge"), ("Statue", "Vase"),
        ("SoapBottle", "SprayBottle"), ("WineBottle", "Glassbottle"), ("Bowl", "Kettle"),
        ("ToiletPaper", "Cloth"), ("Candle", "TissueBox"), ("Towel", "HandTowel"), ("Box", "AlarmClock"),
        ("Lettuce", "PaperTowelRoll"),
    )
    for one, other in (pair, pair[::-1])
}  # fmt: skip
"""Pairs that are easily taken for each other."""

_FITS: Final = (
    ("Apple Tomato Potato Egg Bread Lettuce", "CounterTop DiningTable Fridge Microwave SinkBasin GarbageCan"),
    ("Plate Bowl Cup Mug", "CounterTop DiningTable Cabinet Shelf Fridge Microwave SinkBasin SideTable Desk"
     " CoffeeTable Dresser"),
    ("Mug Cup", "CoffeeMachine"),
    ("Fork Spoon Knife ButterKnife Spatula Ladle", "CounterTop DiningTable Drawer SinkBasin SideTable"),
    ("Pan Pot Kettle", "CounterTop DiningTable Cabinet StoveBurner SinkBasin Fridge"),
    ("SaltShaker PepperShaker", "CounterTop DiningTable Cabinet Drawer Shelf SideTable"),
    ("WineBottle Glassbottle SoapBottle SprayBottle", "CounterTop DiningTable Cabinet Shelf GarbageCan Toilet"
     " Cart SideTable"),
    ("WineBottle", "Fridge"),
    ("PaperTowelRoll", "CounterTop DiningTable Cabinet Shelf GarbageCan"),
    ("Pen Pencil CD CreditCard KeyChain Watch CellPhone RemoteControl Book Newspaper", "Desk Drawer SideTable"
     " Dresser Shelf CoffeeTable TVStand DiningTable"),
    ("CD Pen Pencil Newspaper", "GarbageCan"),
    ("CreditCard KeyChain Watch CD", "Safe"),
    ("Book CellPhone RemoteControl Newspaper Laptop KeyChain CreditCard", "Bed Sofa ArmChair Ottoman"),
    ("Laptop", "Desk Dresser CoffeeTable DiningTable SideTable"),
    ("Pillow TeddyBear", "Bed Sofa ArmChair Ottoman"),
    ("Statue Vase AlarmClock Box TissueBox Candle", "Desk Dresser SideTable Shelf CoffeeTable TVStand"
     " DiningTable CounterTop Cart"),
    ("Vase Statue", "Safe"),
    ("Box", "Sofa ArmChair Ottoman"),
    ("SoapBar Cloth DishSponge ToiletPaper", "CounterTop Cabinet Drawer SinkBasin BathtubBasin Toilet Cart"
     " Shelf GarbageCan"),
    ("Candle TissueBox", "Toilet Cabinet Drawer GarbageCan"),
    ("ToiletPaper", "ToiletPaperHanger"),
    ("Cloth", "LaundryHamper Dresser"),
    ("HandTowel", "HandTowelHolder CounterTop BathtubBasin"),
    ("Towel", "TowelHolder BathtubBasin Bed"),
)  # fmt: skip

FITS: Final = frozenset(
    (receptacle, thing)
    for things, receptacles in _FITS
    for thing in things.split()
    for receptacle in receptacles.split()
)
"""Pairs (receptacle type, object type): what may be put where."""


@dataclass(frozen=True)
class RoomKind:
    """The catalogue of one kind of room.

    Attributes:
        receptacles: Largest number of each type of receptacle.
        objects: Types of portable objects.
        oddments: Portable objects that fit no receptacle: taking one blocks the hand for good.
        fixtures: Objects that lie in no receptacle and cannot be taken.
    """

    receptacles: Mapping[str, int]
    objects: tuple[str, ...]
    oddments: tuple[str, ...]
    fixtures: tuple[str, ...]


ROOMS: Final[Mapping[Room, RoomKind]] = {
    "kitchen": RoomKind(
        {"CounterTop": 3, "Cabinet": 6, "Drawer": 4, "DiningTable": 1, "Shelf": 3, "Fridge": 1,
         "Microwave": 1, "SinkBasin": 1, "StoveBurner": 4, "CoffeeMachine": 1, "GarbageCan": 1},
        _names(
        "Apple Tomato Potato Egg Bread Lettuce Plate Bowl Cup Mug Fork Spoon Knife ButterKnife "
        "Spatula Ladle Pan Pot Kettle SaltShaker PepperShaker WineBottle Glassbottle SoapBottle "
        "DishSponge PaperTowelRoll"),
        ("Boots", "BaseballBat"), ("Chair", "Window", "StoveKnob"),
    ),
    "bedroom": RoomKind(
        {"Bed": 2, "Desk": 2, "Drawer": 6, "Dresser": 1, "SideTable": 2, "Shelf": 4, "GarbageCan": 1,
         "Safe": 1, "ArmChair": 1, "LaundryHamper": 1},
        _names(
        "Pen Pencil CD CreditCard KeyChain Watch CellPhone RemoteControl Book Newspaper Laptop "
        "Pillow TeddyBear AlarmClock Statue Vase Box Mug Cup Bowl Cloth TissueBox Candle"),
        ("BasketBall", "BaseballBat", "TennisRacket"), ("Chair", "Window", "Blinds"),
    ),
    "bathroom": RoomKind(
        {"CounterTop": 2, "Cabinet": 5, "Drawer": 3, "SinkBasin": 2, "Toilet": 1, "Cart": 1, "Shelf": 2,
         "BathtubBasin": 1, "GarbageCan": 1, "TowelHolder": 1, "HandTowelHolder": 2,
         "ToiletPaperHanger": 1},
        _names(
        "SoapBar SoapBottle SprayBottle Cloth DishSponge ToiletPaper TissueBox Candle HandTowel "
        "Towel Cup Mug"),
        ("Plunger", "ScrubBrush"), ("Mirror", "LightSwitch", "ShowerDoor"),
    ),
    "livingroom": RoomKind(
        {"Sofa": 2, "ArmChair": 2, "CoffeeTable": 1, "SideTable": 2, "Shelf": 3, "TVStand": 1, "Drawer": 4,
         "DiningTable": 1, "Safe": 1, "GarbageCan": 1, "Ottoman": 1, "Dresser": 1},
        _names(
        "Book Newspaper RemoteControl CellPhone KeyChain CreditCard Watch Pen Pencil CD Laptop "
        "Pillow TeddyBear Statue Vase Box TissueBox Candle Plate Bowl Mug Cup"),
        ("Boots", "WateringCan"), ("Television", "Window", "Painting"),
    ),
}  # fmt: skip

TOOLS: Final[Mapping[str, tuple[str, frozenset[str], str, str]]] = {
    "pick_clean_then_place_in_recep": ("SinkBasin", CLEANABLE, "cleanable", "isClean"),
    "pick_heat_then_place_in_recep": ("Microwave", HEATABLE, "heatable", "isHot"),
    "pick_cool_then_place_in_recep": ("Fridge", COOLABLE, "coolable", "isCool"),
}
"""By task type: the tool's type, the objects it works on, the ability's and the flag's predicate."""
