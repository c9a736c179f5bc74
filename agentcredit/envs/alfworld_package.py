"""What the installed ``alfworld`` package brings: domain, grammar, goals, constants and the 120 room layouts.

Nothing of the package is copied into this project; games are made from what is installed. ``alfworld`` and everything
below it is imported in the worker alone, and late: some of it is under the GPL, and it takes over a second.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

TOOLS = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "fridge"),
}
"""Task types with a property to bring about: the verb, and the receptacle type where it is done."""


@dataclass(frozen=True)
class Package:
    """The parts of the installed package that games are made of.

    ``constants`` and ``goals`` are ``alfworld.gen.constants`` and ``alfworld.gen.goal_library.gdict``.
    """

    version: str
    domain: str
    grammar: str
    constants: Any
    goals: dict[str, Any]
    layouts: Path


@lru_cache(maxsize=1)
def package() -> Package:
    """The installed package's parts, read once per process."""
    # Importing alfworld creates the folder ALFWORLD_DATA, by default below the user's home, and sets the variable; an
    # import should do neither, so it is pointed at a folder that exists and the variable is put back.
    unset = "ALFWORLD_DATA" not in os.environ
    if unset:
        os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()
    try:
        import alfworld.gen.constants as constants
        import alfworld.gen.goal_library as goal_library
        import alfworld.info as info
    finally:
        if unset:
            os.environ.pop("ALFWORLD_DATA", None)
    return Package(
        version=metadata.version("alfworld"),
        domain=Path(info.ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        grammar=Path(info.ALFRED_TWL2_PATH).read_text(encoding="utf-8"),
        constants=constants,
        goals=goal_library.gdict,
        layouts=Path(info.BUILTIN_DATA_PATH).parent / "gen" / "layouts",
    )
