"""The 120 THOR rooms of the installed package: which receptacles stand where, and which object types occur."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from agentcredit.envs.alfworld_package import package

SCENERY = {
    "StoveBurner": 4,
    "CoffeeMachine": 1,
    "GarbageCan": 1,
    "Toaster": 1,
    "ToiletPaperHanger": 1,
    "TowelHolder": 1,
    "HandTowelHolder": 1,
    "LaundryHamper": 1,
    "Toilet": 1,
    "Ottoman": 1,
    "Cart": 1,
    "TVStand": 1,
    "SideTable": 1,
}
"""Receptacles that a layout's object list names and its table of poses lacks, and how many a room gets (our choice)."""

LAMP_PLACES = frozenset(
    ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable", "TVStand", "ArmChair", "Sofa", "Bed")
)
"""Where a lamp may stand; the package says nothing of lamps (our choice)."""


@dataclass(frozen=True)
class Room:
    """One room.

    ``object_types``  types of all that occurs in the room, furniture included.
    ``receptacles``   (id, type, location) of each receptacle that cannot be carried and has a pose.
    """

    number: int
    object_types: tuple[str, ...]
    receptacles: tuple[tuple[str, str, str], ...]


@cache
def room(number: int) -> Room:
    """A room by its THOR floor plan number."""
    layouts = package().layouts
    types = json.loads((layouts / f"FloorPlan{number}-objects.json").read_text())
    poses = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text())
    receptacles = []
    for name, (x, z, rotation, horizon) in sorted(poses.items()):
        kind = name.split("|")[0] + ("Basin" if name.endswith("Basin") else "")
        if kind in fixed_types():
            # THOR's grid has cells of 0.25 m, and agents turn by 90 degrees.
            location = f"loc|{round(x / 0.25)}|{round(z / 0.25)}|{int(rotation) // 90}|{int(horizon)}"
            receptacles.append((name, kind, location))
    return Room(number, tuple(sorted(set(types))), tuple(receptacles))


@cache
def rooms_for(task: str, unseen: bool) -> tuple[int, ...]:
    """Numbers of the rooms whose kind can host a task type: the 24 test rooms (``unseen``) or the 96 others."""
    constants = package().constants
    numbers = constants.TEST_SCENE_NUMBERS if unseen else constants.TRAIN_SCENE_NUMBERS
    kinds = constants.GOALS_VALID[task]
    return tuple(number for number in sorted(numbers) if any(number in constants.SCENE_TYPE[kind] for kind in kinds))


@cache
def fixed_types() -> frozenset[str]:
    """Types of receptacles that cannot be carried."""
    constants = package().constants
    return frozenset(set(constants.VAL_RECEPTACLE_OBJECTS) - constants.MOVABLE_RECEPTACLES_SET)


@cache
def lamp_types() -> frozenset[str]:
    """Types that can be switched on."""
    return frozenset(package().constants.VAL_ACTION_OBJECTS["Toggleable"])
