"""ALFWorld games made from the installed package's own rooms, goals, domain and grammar.

A game is a pure function of (generator version, size, split, index): no file is needed to name it, to hash it or to
play it. Which receptacles stand in a room, where, and which object types occur in it come from the package's layouts of
the 120 THOR rooms; only the placement of the objects is ours, by seed. Every game can be won by construction: the
objects that the task names lie outside its destination, in receptacles that may hold them, and the appliance stands in
the room. Games on which the searching expert would take long are passed over, so an agent's turn limit is never the
reason why a task cannot be done.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

from agentcredit.envs.alfworld_games import Game
from agentcredit.envs.alfworld_model import RoomModel, expert_turns
from agentcredit.envs.alfworld_package import TASK_TYPES, TOOLS, package

GENERATOR_VERSION = 1
"""Raised whenever any game changes: a game's name then says that it is another one."""

SPLITS = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""The official release's counts, so that intervals have the width that readers know."""

_PROPERTIES = {"clean": "Cleanable", "heat": "Heatable", "cool": "Coolable"}

_SCENERY = {
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
"""Receptacles that a layout's object list names and its table of poses lacks, and how many to add."""

_LAMP_PLACES = frozenset(
    ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable", "TVStand", "ArmChair", "Sofa", "Bed")
)


@dataclass(frozen=True)
class Size:
    """How much of a room a game keeps.

    ``receptacles``, ``object_types``  upper bounds (about: what the task needs always stays); 0 keeps the whole room.
    ``copies``        drawn from to say how many objects of a type there are.
    ``expert_turns``  games on which the expert takes longer are passed over.
    """

    receptacles: int
    object_types: int
    copies: tuple[int, ...]
    expert_turns: int
    default_max_turns: int


SIZES = {
    "small": Size(7, 6, (1, 1, 1, 2), expert_turns=20, default_max_turns=24),
    "full": Size(0, 0, (1, 1, 2, 3), expert_turns=40, default_max_turns=50),
}


class Unsuitable(Exception):
    """The room, or this draw from it, cannot host the task."""


def build_game(size: str, split: str, index: int) -> Game:
    """The game of that name: the first draw that the room can host and that the expert wins in time.

    Raises:
        KeyError: no such size or split, or an index outside it.
    """
    limits = SIZES[size]
    if not 0 <= index < SPLITS[split]:
        raise KeyError(f"{size}/{split}/{index}")
    task = TASK_TYPES[index % len(TASK_TYPES)]
    rooms = _rooms(task, unseen=split == "valid_unseen")
    for draw in range(1000):
        rng = random.Random(f"alfworld-v{GENERATOR_VERSION}/{size}/{split}/{index}/{draw}")
        try:
            game, model = _Draft(rng, rng.choice(rooms), task, limits).finish(game_id(size, split, index))
        except Unsuitable:
            continue
        if expert_turns(game, model) <= limits.expert_turns:
            return game
    raise AssertionError(f"no draw of {game_id(size, split, index)} can be played")


def game_id(size: str, split: str, index: int) -> str:
    """A generated game's id, as in ``small-v1/train/000123``."""
    return f"{size}-v{GENERATOR_VERSION}/{split}/{index:06d}"


@dataclass(frozen=True)
class Room:
    """A room of the package: object types in it, and poses of receptacles by id."""

    number: int
    object_types: tuple[str, ...]
    receptacles: tuple[tuple[str, str, str], ...]
    """(id, type, location) of each receptacle that cannot be carried."""


@cache
def room(number: int) -> Room:
    """A room of the package, by its THOR floor plan number."""
    parts = package()
    fixed = set(parts.constants.VAL_RECEPTACLE_OBJECTS) - parts.constants.MOVABLE_RECEPTACLES_SET
    types = json.loads((parts.layouts / f"FloorPlan{number}-objects.json").read_text())
    poses = json.loads((parts.layouts / f"FloorPlan{number}-openable.json").read_text())
    receptacles = []
    for name, (x, z, rotation, horizon) in sorted(poses.items()):
        kind = name.split("|")[0] + ("Basin" if name.endswith("Basin") else "")
        if kind in fixed:
            # THOR's grid has cells of 0.25 m, and agents turn by 90 degrees.
            location = f"loc|{round(x / 0.25)}|{round(z / 0.25)}|{int(rotation) // 90}|{int(horizon)}"
            receptacles.append((name, kind, location))
    return Room(number, tuple(sorted(set(types))), tuple(receptacles))


@cache
def _rooms(task: str, unseen: bool) -> tuple[int, ...]:
    constants = package().constants
    numbers = constants.TEST_SCENE_NUMBERS if unseen else constants.TRAIN_SCENE_NUMBERS
    kinds = sorted(constants.GOALS_VALID[task])
    return tuple(number for number in sorted(numbers) if any(number in constants.SCENE_TYPE[kind] for kind in kinds))


class _Draft:
    """One draw: chooses the goal, the receptacles and the objects of a game, in this order.

    Raises:
        Unsuitable: the room lacks what the task needs.
    """

    def __init__(self, rng: random.Random, number: int, task: str, size: Size) -> None:
        self.rng, self.room, self.task, self.size = rng, room(number), task, size
        self.constants = package().constants
        self.holds = self.constants.VAL_RECEPTACLE_OBJECTS
        self.verb, tool = TOOLS.get(task, ("", ""))
        self.tool = {"sinkbasin": "SinkBasin", "microwave": "Microwave", "fridge": "Fridge"}.get(tool, "")
        self.receptacles = self._all_receptacles()
        self.lamp = self.target = self.destination = ""
        self._choose_goal()
        if size.receptacles:
            self._thin_out()
        self.objects = self._place_objects()

    def _all_receptacles(self) -> dict[str, tuple[str, str]]:
        """Type and location by id: those with a pose, and the scenery at random places of the grid."""
        rng = self.rng
        found = {name: (kind, location) for name, kind, location in self.room.receptacles}
        present = {kind for kind, _ in found.values()}
        for kind, count in _SCENERY.items():
            if kind in self.room.object_types and kind not in present and kind in self.holds:
                for _ in range(count):
                    location = f"loc|{rng.randint(-9, 9)}|{rng.randint(-9, 9)}|{rng.randint(0, 3)}|45"
                    found[f"{kind}|{_position(rng)}"] = (kind, location)
        return found

    def _fitting(self, kind: str) -> list[str]:
        return [name for name, (place, _) in sorted(self.receptacles.items()) if kind in self.holds[place]]

    def _portable(self) -> list[str]:
        """Object types of the room that can lie somewhere in it and be picked up, lamps left out."""
        fixed = set(self.holds) - self.constants.MOVABLE_RECEPTACLES_SET
        lamps = self.constants.VAL_ACTION_OBJECTS["Toggleable"]
        return [kind for kind in self.room.object_types if kind not in fixed | lamps and self._fitting(kind)]

    def _choose_goal(self) -> None:
        actions = self.constants.VAL_ACTION_OBJECTS
        places = {kind for kind, _ in self.receptacles.values()}
        if self.tool and self.tool not in places:
            raise Unsuitable(self.tool)
        candidates = [kind for kind in self._portable() if not self.verb or kind in actions[_PROPERTIES[self.verb]]]
        if self.task == "look_at_obj_in_light":
            lamps = sorted(actions["Toggleable"] & set(self.room.object_types))
            if not (lamps and candidates and places & _LAMP_PLACES):
                raise Unsuitable("lamp")
            self.lamp, self.target = self.rng.choice(lamps), self.rng.choice(candidates)
            return
        # The object must fit the destination and start elsewhere; what is cleaned does not go back into the sink.
        pairs = [
            (kind, place)
            for kind in candidates
            for place in sorted(places - {self.tool})
            if kind in self.holds[place] and any(self.receptacles[name][0] != place for name in self._fitting(kind))
        ]
        if not pairs:
            raise Unsuitable("pair")
        self.target, self.destination = self.rng.choice(pairs)

    def _thin_out(self) -> None:
        """Keep what the task needs (one of each, and two places for the object) and fill up at random."""
        kept: list[str] = []

        def keep(names: list[str], count: int) -> None:
            names = [name for name in names if name not in kept]
            kept.extend(self.rng.sample(names, min(max(count, 0), len(names))))

        def of(kinds: set[str] | frozenset[str]) -> list[str]:
            return [name for name, (kind, _) in sorted(self.receptacles.items()) if kind in kinds]

        others = [name for name, (kind, _) in sorted(self.receptacles.items()) if kind != self.destination]
        keep(of({self.destination}), 1)
        keep(of({self.tool}), 1)
        if self.lamp:
            keep(of(_LAMP_PLACES), 1)
        keep([name for name in self._fitting(self.target) if name in others], 2)
        keep(others, self.size.receptacles - len(kept))
        self.receptacles = {name: self.receptacles[name] for name in sorted(kept)}

    def _place_objects(self) -> dict[str, tuple[str, str]]:
        """Type and receptacle by object id."""
        rng = self.rng
        kinds = self._portable()
        if self.size.object_types:
            others = [kind for kind in kinds if kind != self.target]
            kinds = sorted([self.target, *rng.sample(others, min(self.size.object_types - 1, len(others)))])
        objects = {}
        for kind in kinds:
            spots = self._fitting(kind)
            copies = rng.choice(self.size.copies)
            if kind == self.target:
                spots = [name for name in spots if self.receptacles[name][0] != self.destination]
                copies = max(copies, 2 if self.task == "pick_two_obj_and_place" else 1)
            for _ in range(copies):
                objects[f"{kind}|{_position(rng)}"] = (kind, rng.choice(spots))
        lamps = [self.lamp] if self.size.object_types else sorted(self._room_lamps())
        places = [name for name, (kind, _) in sorted(self.receptacles.items()) if kind in _LAMP_PLACES]
        for kind in lamps:
            if kind and places:
                objects[f"{kind}|{_position(rng)}"] = (kind, rng.choice(places))
        return objects

    def _room_lamps(self) -> set[str]:
        return self.constants.VAL_ACTION_OBJECTS["Toggleable"] & set(self.room.object_types)

    def finish(self, name: str) -> tuple[Game, RoomModel]:
        """The game and the model of its room."""
        goal = package().goals[self.task]
        names = {"obj": self.target, "recep": self.destination, "toggle": self.lamp}
        sentence = self.rng.choice(goal["templates"]).format(**{key: text.lower() for key, text in names.items()})
        start = f"loc|{self.rng.randint(-9, 9)}|{self.rng.randint(10, 14)}|0|30"  # off the grid of receptacles
        problem = self._problem(start) + goal["pddl"].format(**names).replace("#", "-")
        game = Game(
            id=name,
            type=self.task,
            goal=sentence,
            problem=problem,
            domain=package().domain,
            grammar=package().grammar.replace("UNKNOWN GOAL", sentence),
            target=self.target.lower(),
            destination=self.destination.lower(),
            lamp=self.lamp.lower(),
        )
        return game, self._model()

    def _problem(self, start: str) -> str:
        """The PDDL problem up to its goal."""
        actions, movable = self.constants.VAL_ACTION_OBJECTS, self.constants.MOVABLE_RECEPTACLES_SET
        place_types = {kind for kind, _ in self.receptacles.values()}
        object_types = {kind for kind, _ in self.objects.values()}
        locations = {location for _, location in self.receptacles.values()} | {start}
        lines = [f"(define (problem plan_{self.room.number})", "(:domain alfred)", "(:objects", "agent1 - agent"]
        lines += [f"{_mangle(name)} - object" for name in sorted(self.objects)]
        # The domain's conditions name these types, so they are declared in any case.
        lines += [f"{kind}Type - otype" for kind in sorted(object_types | {"Knife", "ButterKnife"})]
        lines += [f"{kind}Type - rtype" for kind in sorted(place_types | {"SinkBasin", "Microwave", "Fridge"})]
        lines += [f"{_mangle(name)} - receptacle" for name in sorted(self.receptacles)]
        lines += [f"{_mangle(location)} - location" for location in sorted(locations)]
        lines += [")", "(:init", f"(atLocation agent1 {_mangle(start)})", "(= (total-cost) 0)"]
        for name, (kind, location) in sorted(self.receptacles.items()):
            lines.append(f"(receptacleType {_mangle(name)} {kind}Type)")
            lines.append(f"(receptacleAtLocation {_mangle(name)} {_mangle(location)})")
            if kind in self.constants.OPENABLE_CLASS_SET:
                lines.append(f"(openable {_mangle(name)})")
        for place in sorted(place_types):
            lines += [f"(canContain {place}Type {kind}Type)" for kind in sorted(object_types & self.holds[place])]
        for name, (kind, place) in sorted(self.objects.items()):
            thing = _mangle(name)
            lines.append(f"(objectType {thing} {kind}Type)")
            lines.append(f"(inReceptacle {thing} {_mangle(place)})")
            lines.append(f"(wasInReceptacle {thing} {_mangle(place)})")
            lines.append(f"(objectAtLocation {thing} {_mangle(self.receptacles[place][1])})")
            lines.append(f"({'toggleable' if kind in actions['Toggleable'] else 'pickupable'} {thing})")
            lines += [f"(isReceptacleObject {thing})"] if kind in movable else []
            properties = ("Cleanable", "Heatable", "Coolable", "Sliceable")
            lines += [f"({verb.lower()} {thing})" for verb in properties if kind in actions[verb]]
        return "\n".join([*lines, ")"])

    def _model(self) -> RoomModel:
        names = _names([*self.receptacles, *self.objects])
        contents: dict[str, list[str]] = {names[name]: [] for name in self.receptacles}
        for thing, (_, place) in self.objects.items():
            contents[names[place]].append(names[thing])
        doors = self.constants.OPENABLE_CLASS_SET
        return RoomModel(contents, {names[name] for name, (kind, _) in self.receptacles.items() if kind in doors})


def _names(identifiers: Sequence[str]) -> dict[str, str]:
    """The names that the engine gives (``countertop 1``), by the package's own rule."""
    from alfworld.agents.utils.misc import Demangler

    # PDDL has no upper case: the engine sees, and sorts, lower-case identifiers.
    mangled = {name: _mangle(name).lower() for name in identifiers}
    demangler = Demangler(game_infos={text: SimpleNamespace(id=text) for text in mangled.values()})
    return {name: demangler.demangle_alfred_name(text).strip() for name, text in mangled.items()}


def _mangle(name: str) -> str:
    for character, word in (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_"), (",", "_comma_")):
        name = name.replace(character, word)
    return name


def _position(rng: random.Random) -> str:
    """A THOR position as it stands in object ids, as in ``+01.25|+00.90|-00.41``."""
    return "|".join(f"{round(rng.uniform(low, high), 2):+06.2f}" for low, high in ((-3, 3), (0.1, 1.9), (-3, 3)))
