"""Abstract states of ALFWorld for GiGPO and ProAS, read from the simulator's PDDL facts (docs/methods/proas.md).

Level 0 names things: where the agent stands, what it holds, what was heated, cooled, cleaned, sliced, switched on, moved
or opened. These are the fields of GraphGPO's public code, which tracks them by parsing texts; the simulator knows.
Level 1 names roles and is shared by all tasks of a type: has the target been seen, what is held, is its property done,
where does the agent stand, how many are placed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentcredit.envs.alfworld_games import Game

_DONE = {"clean": "isclean", "heat": "ishot", "cool": "iscool"}

_PROPERTIES = {
    "ishot": "hot",
    "iscool": "cool",
    "isclean": "clean",
    "issliced": "sliced",
    "istoggled": "toggled",
    "ison": "on",
}

_STATIC = frozenset(
    (
        *("receptacleatlocation", "receptacletype", "objecttype", "cancontain", "openable", "isreceptacleobject"),
        *("cleanable", "heatable", "coolable", "sliceable", "pickupable", "moveable", "toggleable"),
        # Changed by looking around and by nothing read again: no rule, text or goal depends on them.
        *("checked", "not_checked", "examined", "wasinreceptacle"),
    )
)

_DYNAMIC = frozenset(("atlocation", "holds", "inreceptacle", "opened", *_PROPERTIES))

_NAME = re.compile(r"\b[a-z]+ \d+\b")


class StateReader:
    """Keys of one live game, from its facts after every step.

    Attributes:
        seen: names of the target objects and lamps that the agent has seen, no more of each type than the task needs.
            The only part of a state that facts do not hold, so it belongs to :meth:`full_state`.
    """

    def __init__(self, game: Game, facts: Mapping[Any, Iterable[Any]], name: Callable[[Any], str]) -> None:
        self._game = game
        self._name = name
        self.seen: tuple[str, ...] = ()
        rows = self._rows(facts, frozenset(("receptacleatlocation", "openable", "inreceptacle")))
        self._places: dict[str, list[str]] = {}
        for place, location in rows("receptacleatlocation"):
            self._places.setdefault(location, []).append(place)
        self._doors = {place for (place,) in rows("openable")}
        self._start = dict(rows("inreceptacle"))
        self.update("", facts)

    def update(self, observation: str, facts: Mapping[Any, Iterable[Any]]) -> None:
        """Takes in what a step led to."""
        self._facts = facts
        self._remember(observation)
        rows = self._rows(facts, _DYNAMIC)
        location = next((location for _, location in rows("atlocation")), "")
        self.here = sorted(self._places.get(location, ()))
        self.held = [item for _, item in rows("holds")]
        self.inside = dict(rows("inreceptacle"))
        self.opened = {place for (place,) in rows("opened")}
        self.properties = {fact: {item for (item,) in rows(fact)} for fact in _PROPERTIES}

    def state_key(self) -> str:
        """Level 0, as in ``at fridge 1 | hold egg 1 | hot egg 1 | open fridge 1``."""
        parts = ["at " + (", ".join(self.here) or "room")]
        parts += [f"hold {item}" for item in self.held]
        for fact, word in _PROPERTIES.items():
            parts += [f"{word} {item}" for item in sorted(self.properties[fact])]
        for item, place in sorted(self.inside.items()):
            start = self._start.get(item, "")
            parts += [f"moved {item}: {start} > {place}"] if place != start else []
        parts += [f"open {place}" for place in sorted(self.opened)]
        return " | ".join(parts)

    def lifted_key(self) -> str:
        """Level 1, as in ``seen 1 | hold target | ready 1 | at destination | placed 0``."""
        game = self._game
        kinds = [item.split()[0] for item in self.held]
        done = self.properties.get(_DONE[game.tool[0]]) if game.tool else None
        targets = [item for item in (*self.held, *self.inside) if item.split()[0] == game.target]
        placed = [
            item
            for item in targets
            if self.inside.get(item, "").split(" ")[0] == game.destination and (done is None or item in done)
        ]
        ready = done is None or any(item in done for item in self.held if item in targets)
        parts = [
            f"seen {sum(item.split()[0] == game.target for item in self.seen)}",
            "hold " + ("target" if game.target in kinds else "other" if kinds else "nothing"),
            f"ready {int(ready)}",
            f"at {self._role()}",
            f"placed {min(len(placed), game.needed)}",
        ]
        if game.lamp:
            parts.append(f"lamp {int(any(item.split()[0] == game.lamp for item in self.seen))}")
        return " | ".join(parts)

    def full_state(self) -> str:
        """SHA-256 (16 hex digits) of all that an answer to an action can depend on."""
        facts = sorted(
            f"{signature.name} {' '.join(argument.name for argument in fact.arguments)}"
            for signature, group in self._facts.items()
            if signature.name not in _STATIC
            for fact in group
        )
        return hashlib.sha256("\n".join((*facts, *self.seen)).encode()).hexdigest()[:16]

    def _role(self) -> str:
        """What the agent's place is to the task; a shut door makes it another place."""
        kinds = {place.split()[0] for place in self.here}
        shut = " shut" if any(place in self._doors - self.opened for place in self.here) else ""
        lies_here = {item.split()[0] for item, place in self.inside.items() if place in self.here and not shut}
        game = self._game
        if game.destination in kinds:
            return "destination" + shut
        if game.tool and game.tool[1] in kinds:
            return "tool" + shut
        if game.target in lies_here:
            return "target"
        if game.lamp and game.lamp in lies_here:
            return "lamp"
        return "elsewhere" + shut

    def _remember(self, observation: str) -> None:
        for kind, needed in ((self._game.target, self._game.needed), (self._game.lamp, 1)):
            for name in _NAME.findall(observation):
                known = [item for item in self.seen if item.split()[0] == kind]
                if name.split()[0] == kind and name not in known and len(known) < needed:
                    self.seen = tuple(sorted((*self.seen, name)))

    def _rows(self, facts: Mapping[Any, Iterable[Any]], wanted: frozenset[str]) -> Callable[[str], list[Any]]:
        by_name: dict[str, list[tuple[str, ...]]] = {}
        for signature, group in facts.items():
            if signature.name in wanted:
                rows = [tuple(self._name(argument) for argument in fact.arguments) for fact in group]
                by_name.setdefault(signature.name, []).extend(rows)
        return lambda name: sorted(by_name.get(name, []))
