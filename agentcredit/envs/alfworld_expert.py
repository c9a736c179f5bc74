"""An expert that searches: it knows the task and what it has seen, no more than the agent does.

It is a coroutine: it yields a step (thought and command) and is sent the result that the step led to, so the real
engine and the generator's model of a room (:mod:`agentcredit.envs.alfworld_model`) drive the same code. Cheap and
likely places come first, always in the same order, which also makes its episodes easy to imitate.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cache

from agentcredit.envs.alfworld_games import Game
from agentcredit.envs.alfworld_package import package
from agentcredit.envs.base import ExpertStep, StepResult

_ITEM = re.compile(r"\ban? ([a-z]+ \d+)")

Steps = Generator[ExpertStep, StepResult, None]
Found = Generator[ExpertStep, StepResult, "str | None"]


def expert_steps(game: Game, start: StepResult) -> Steps:
    """The expert's steps from the reset's result on; ends when the task is done or nowhere is left to look."""
    return _Searcher(game, start).solve()


@cache
def _holders(kind: str) -> frozenset[str]:
    """Receptacle types that can hold an object type, in lower case."""
    holds = package().constants.VAL_RECEPTACLE_OBJECTS
    return frozenset(place.lower() for place, kinds in holds.items() if kind in {name.lower() for name in kinds})


@cache
def _doors() -> frozenset[str]:
    return frozenset(name.lower() for name in package().constants.OPENABLE_CLASS_SET)


def _natural(name: str) -> tuple[str, int]:
    kind, number = name.split()
    return kind, int(number)


class _Searcher:
    """Memory of one episode: which places there are, what lies where, and what can be done now."""

    def __init__(self, game: Game, start: StepResult) -> None:
        self.game = game
        self.places = sorted(_ITEM.findall(start.observation), key=_natural)
        self.contents: dict[str, list[str]] = {}
        self.admissible = frozenset(start.admissible or ())
        self.destination = self.first_of(game.destination) if game.destination else ""

    def solve(self) -> Steps:
        for _ in range(self.game.needed):
            item = yield from self.fetch(self.game.target)
            if item is None:
                return
            if self.game.tool:
                yield from self.treat(item, *self.game.tool)
            if self.game.lamp:
                yield from self.light()
            else:
                yield from self.put(item)

    def fetch(self, kind: str) -> Found:
        """Find an object of a type and take it."""
        place = yield from self.find(kind)
        if place is None:
            return None
        item = self.wanted(place, kind)[0]
        yield from self.do(f"take {kind}", f"take {item} from {place}")
        self.contents[place].remove(item)
        return item

    def find(self, kind: str) -> Found:
        """Go to where an object of a type is: a place that is known to hold one, else through the likely places."""
        known = [place for place in self.contents if self.wanted(place, kind)]
        for place in known[:1] or self.unvisited(kind):
            yield from self.visit(place, f"find {kind}")
            if self.wanted(place, kind):
                return place
        return None

    def wanted(self, place: str, kind: str) -> list[str]:
        """Objects of a type that were seen at a place; of two that belong there, one that lies there already stays."""
        if self.game.needed == 2 and place == self.destination:
            return []
        return [item for item in self.contents[place] if item.split()[0] == kind]

    def unvisited(self, kind: str) -> list[str]:
        """Places not yet looked into: first those that can hold the type, and of these the ones without a door."""
        holders, doors = _holders(kind), _doors()

        def rank(place: str) -> tuple[bool, bool, tuple[str, int]]:
            type_ = place.split()[0]
            return type_ not in holders, type_ in doors, _natural(place)

        return sorted((place for place in self.places if place not in self.contents), key=rank)

    def visit(self, place: str, thought: str) -> Steps:
        """Stand at a place and see what it holds; a door is opened.

        Where one stands already (places may share a location) there is no way to go, and one looks.
        """
        if f"go to {place}" in self.admissible:
            observation = yield from self.do(thought, f"go to {place}")
        elif place in self.contents:
            return
        else:
            observation = yield from self.do(thought, f"examine {place}")
        if f"{place} is closed" in observation:
            observation = yield from self.do(thought, f"open {place}")
        # Cut at "you see", or the place itself would be read as one of its items.
        self.contents[place] = _ITEM.findall(observation.partition("you see")[2])

    def treat(self, item: str, verb: str, tool: str) -> Steps:
        """Clean, heat or cool what is held; the tool's door may stay closed."""
        thought, place = f"{verb} {self.game.target}", self.first_of(tool)
        if f"go to {place}" in self.admissible:
            yield from self.do(thought, f"go to {place}")
        yield from self.do(thought, f"{verb} {item} with {place}")

    def light(self) -> Steps:
        """With the object in hand, find the lamp and switch it on."""
        place = yield from self.find(self.game.lamp)
        if place is not None:
            yield from self.do(f"use {self.game.lamp}", f"use {self.wanted(place, self.game.lamp)[0]}")

    def put(self, item: str) -> Steps:
        """Bring what is held to the task's place; two objects go to the same one."""
        thought = f"put {self.game.target} in {self.game.destination}"
        yield from self.visit(self.destination, thought)
        yield from self.do(thought, f"move {item} to {self.destination}")
        self.contents[self.destination].append(item)

    def do(self, thought: str, action: str) -> Generator[ExpertStep, StepResult, str]:
        """One step; returns what was seen."""
        result = yield ExpertStep(thought, action)
        self.admissible = frozenset(result.admissible or ())
        return result.observation

    def first_of(self, kind: str) -> str:
        """The first place of a type. Raises LookupError when the room has none."""
        for place in self.places:
            if place.split()[0] == kind:
                return place
        raise LookupError(f"the room of {self.game.id} has no {kind}")
