"""ALFWorld games made from the installed package's own rooms, goals, domain and grammar.

A game is a pure function of (generator version, size, split, index): no file is needed to name it, to hash it or to
play it. Which receptacles stand in a room, where, and which object types occur in it come from the package's layouts;
only the placement of the objects is ours, by seed. Every game can be won by construction: the objects that the task
names lie outside its destination, in receptacles that may hold them, and the appliance stands in the room. Games on
which the searching expert would take long are passed over, so a turn limit is never the reason why a task fails.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentcredit.envs.alfworld_games import Game
from agentcredit.envs.alfworld_model import expert_turns
from agentcredit.envs.alfworld_package import TASK_TYPES, TOOLS, package
from agentcredit.envs.alfworld_problem import Furnished, problem_text, room_model
from agentcredit.envs.alfworld_rooms import LAMP_PLACES, SCENERY, Room, fixed_types, lamp_types, room, rooms_for

GENERATOR_VERSION = 1
"""Raised whenever any game changes, so that a game's id then says that it is another one."""

SPLITS = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""The official release's counts: intervals have the width that readers know, and no game is made before it is asked for."""

_TOOL_TYPES = {"sinkbasin": "SinkBasin", "microwave": "Microwave", "fridge": "Fridge", "": ""}
_PROPERTIES = {"clean": "Cleanable", "heat": "Heatable", "cool": "Coolable"}


@dataclass(frozen=True)
class Size:
    """How much of a room a game keeps.

    ``receptacles``, ``object_types``  how many stay; what the task needs always does. 0 keeps the whole room.
    ``copies``        how many objects of a type there are is drawn from these.
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
    limits, task = SIZES[size], TASK_TYPES[index % len(TASK_TYPES)]
    if not 0 <= index < SPLITS[split]:
        raise KeyError(game_id(size, split, index))
    numbers = rooms_for(task, unseen=split == "valid_unseen")
    for draw in range(1000):
        rng = random.Random(f"alfworld-v{GENERATOR_VERSION}/{size}/{split}/{index}/{draw}")
        try:
            drawn = _Draw(rng, room(rng.choice(numbers)), task, limits)
        except Unsuitable:
            continue
        game = drawn.game(game_id(size, split, index))
        if expert_turns(game, room_model(drawn.furnished)) <= limits.expert_turns:
            return game
    raise AssertionError(f"no draw of {game_id(size, split, index)} can be played")


def game_id(size: str, split: str, index: int) -> str:
    """A generated game's id, as in ``small-v1/train/000123``."""
    return f"{size}-v{GENERATOR_VERSION}/{split}/{index:06d}"


class _Draw:
    """One draw: the goal, then the receptacles that stay, then the objects.

    Raises:
        Unsuitable: the room lacks what the task needs.
    """

    def __init__(self, rng: random.Random, room: Room, task: str, size: Size) -> None:
        self.rng, self.room, self.task, self.size = rng, room, task, size
        self.holds = package().constants.VAL_RECEPTACLE_OBJECTS
        self.verb, tool = TOOLS.get(task, ("", ""))
        self.tool = _TOOL_TYPES[tool]
        self.receptacles = self._standing()
        self.target, self.destination, self.lamp = self._goal()
        if size.receptacles:
            self.receptacles = self._thinned_out()
        # No receptacle stands where the agent starts, so the episode begins "in the middle of a room".
        start = f"loc|{rng.randint(-9, 9)}|{rng.randint(100, 109)}|0|30"
        self.furnished = Furnished(self.receptacles, self._objects(), start)

    def game(self, name: str) -> Game:
        """The game, its task in one of the package's own sentences."""
        library = package().goals[self.task]
        names = {"obj": self.target, "recep": self.destination, "toggle": self.lamp}
        goal = self.rng.choice(library["templates"]).format(**{slot: text.lower() for slot, text in names.items()})
        return Game(
            id=name,
            type=self.task,
            goal=goal,
            problem=problem_text(self.furnished, library["pddl"].format(**names)),
            domain=package().domain,
            grammar=package().grammar.replace("UNKNOWN GOAL", goal),
            target=self.target.lower(),
            destination=self.destination.lower(),
            lamp=self.lamp.lower(),
        )

    def _standing(self) -> dict[str, tuple[str, str]]:
        """Type and location by id, sorted: receptacles with a pose, and scenery at random places of the grid."""
        rng = self.rng
        found = {name: (kind, location) for name, kind, location in self.room.receptacles}
        missing = set(self.room.object_types) & fixed_types() - {kind for kind, _ in found.values()}
        for kind, count in SCENERY.items():
            for _ in range(count if kind in missing else 0):
                location = f"loc|{rng.randint(-9, 9)}|{rng.randint(-9, 9)}|{rng.randint(0, 3)}|45"
                found[f"{kind}|{_position(rng)}"] = (kind, location)
        return dict(sorted(found.items()))

    def _goal(self) -> tuple[str, str, str]:
        """Types of the target, its destination and the lamp."""
        places = {kind for kind, _ in self.receptacles.values()}
        if self.tool and self.tool not in places:
            raise Unsuitable(f"room {self.room.number} has no {self.tool}")
        actions = package().constants.VAL_ACTION_OBJECTS
        targets = [kind for kind in self._portable() if not self.verb or kind in actions[_PROPERTIES[self.verb]]]
        if self.task == "look_at_obj_in_light":
            lamps = sorted(lamp_types() & set(self.room.object_types))
            if not (lamps and targets and places & LAMP_PLACES):
                raise Unsuitable(f"room {self.room.number} has no lamp, no place for one or nothing to look at")
            return self.rng.choice(targets), "", self.rng.choice(lamps)
        # The object must fit its destination and start elsewhere; what was cleaned does not go back into the sink.
        pairs = [
            (kind, place)
            for kind in targets
            for place in sorted(places - {self.tool})
            if kind in self.holds[place] and any(self.receptacles[name][0] != place for name in self._spots(kind))
        ]
        if not pairs:
            raise Unsuitable(f"room {self.room.number} has no object for {self.task}")
        target, destination = self.rng.choice(pairs)
        return target, destination, ""

    def _thinned_out(self) -> dict[str, tuple[str, str]]:
        """What the task needs (one receptacle of each kind, two places for the target), filled up at random."""
        kept: list[str] = []

        def keep(count: int, names: list[str]) -> None:
            names = [name for name in names if name not in kept]
            kept.extend(self.rng.sample(names, min(max(count, 0), len(names))))

        kinds = {name: kind for name, (kind, _) in self.receptacles.items()}
        others = [name for name in kinds if kinds[name] != self.destination]
        keep(1, [name for name in kinds if kinds[name] == self.destination])
        keep(1, [name for name in kinds if kinds[name] == self.tool])
        keep(1 if self.lamp else 0, [name for name in kinds if kinds[name] in LAMP_PLACES])
        keep(2, [name for name in others if self.target in self.holds[kinds[name]]])
        keep(self.size.receptacles - len(kept), others)
        return {name: self.receptacles[name] for name in sorted(kept)}

    def _objects(self) -> dict[str, tuple[str, str]]:
        """Type and receptacle by object id."""
        rng, placed = self.rng, {}
        kinds, lamps = self._portable(), sorted(lamp_types() & set(self.room.object_types))
        if self.size.object_types:
            others = [kind for kind in kinds if kind != self.target]
            kinds = sorted([self.target, *rng.sample(others, min(self.size.object_types - 1, len(others)))])
            lamps = [self.lamp] if self.lamp else []
        for kind in kinds:
            spots, copies = self._spots(kind), rng.choice(self.size.copies)
            if kind == self.target:
                spots = [name for name in spots if self.receptacles[name][0] != self.destination]
                copies = max(copies, 2 if self.task == "pick_two_obj_and_place" else 1)
            for _ in range(copies):
                placed[f"{kind}|{_position(rng)}"] = (kind, rng.choice(spots))
        stands = [name for name, (kind, _) in self.receptacles.items() if kind in LAMP_PLACES]
        for kind in lamps if stands else []:
            placed[f"{kind}|{_position(rng)}"] = (kind, rng.choice(stands))
        return placed

    def _portable(self) -> list[str]:
        """Object types of the room that can be picked up and have somewhere to lie."""
        return [
            kind
            for kind in self.room.object_types
            if kind not in fixed_types() and kind not in lamp_types() and self._spots(kind)
        ]

    def _spots(self, kind: str) -> list[str]:
        return [name for name, (place, _) in self.receptacles.items() if kind in self.holds[place]]


def _position(rng: random.Random) -> str:
    """A THOR position as it stands in object ids, as in ``+01.25|+00.90|-00.41``."""
    return "|".join(f"{round(rng.uniform(low, high), 2):+06.2f}" for low, high in ((-3, 3), (0.1, 1.9), (-3, 3)))
