"""From a furnished room to what needs it: the PDDL problem for the engine, and the model for the generator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from agentcredit.envs.alfworld_model import RoomModel
from agentcredit.envs.alfworld_package import package

_MANGLED = (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_"), (",", "_comma_"))
"""ALFWorld's spelling of THOR ids in PDDL."""


@dataclass(frozen=True)
class Furnished:
    """A room with its objects.

    ``receptacles``  type and location by id.  ``objects``  type and receptacle id by id.  ``start``  the agent's location.
    """

    receptacles: Mapping[str, tuple[str, str]]
    objects: Mapping[str, tuple[str, str]]
    start: str


def problem_text(room: Furnished, goal: str) -> str:
    """The PDDL problem.

    ``goal`` is a goal of the package's library with its names filled in; it also closes the problem's parenthesis. The
    order of all lines is fixed, so equal rooms give equal texts.
    """
    constants = package().constants
    place_types = {kind for kind, _ in room.receptacles.values()}
    object_types = {kind for kind, _ in room.objects.values()}
    locations = {location for _, location in room.receptacles.values()} | {room.start}
    lines = ["(define (problem generated)", "(:domain alfred)", "(:objects", "agent1 - agent"]
    lines += [f"{_mangle(name)} - object" for name in sorted(room.objects)]
    # The domain's own conditions name these types, so they are declared in any case.
    lines += [f"{kind}Type - otype" for kind in sorted(object_types | {"Knife", "ButterKnife"})]
    lines += [f"{kind}Type - rtype" for kind in sorted(place_types | {"SinkBasin", "Microwave", "Fridge"})]
    lines += [f"{_mangle(name)} - receptacle" for name in sorted(room.receptacles)]
    lines += [f"{_mangle(location)} - location" for location in sorted(locations)]
    lines += [")", "(:init", f"(atLocation agent1 {_mangle(room.start)})", "(= (total-cost) 0)"]
    for name, (kind, location) in sorted(room.receptacles.items()):
        lines += _receptacle(_mangle(name), kind, _mangle(location))
    for place in sorted(place_types):
        held = sorted(object_types & constants.VAL_RECEPTACLE_OBJECTS[place])
        lines += [f"(canContain {place}Type {kind}Type)" for kind in held]
    for name, (kind, place) in sorted(room.objects.items()):
        lines += _object(_mangle(name), kind, _mangle(place), _mangle(room.receptacles[place][1]))
    # The library writes types as "?o # object".
    return "\n".join([*lines, ")"]) + goal.replace("#", "-")


def _receptacle(name: str, kind: str, location: str) -> list[str]:
    openable = [f"(openable {name})"] if kind in package().constants.OPENABLE_CLASS_SET else []
    return [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {location})", *openable]


def _object(name: str, kind: str, place: str, location: str) -> list[str]:
    constants = package().constants
    actions = constants.VAL_ACTION_OBJECTS
    lines = [
        f"(objectType {name} {kind}Type)",
        f"(inReceptacle {name} {place})",
        f"(wasInReceptacle {name} {place})",
        f"(objectAtLocation {name} {location})",
        f"({'toggleable' if kind in actions['Toggleable'] else 'pickupable'} {name})",
    ]
    if kind in constants.MOVABLE_RECEPTACLES_SET:
        lines.append(f"(isReceptacleObject {name})")
    properties = ("Cleanable", "Heatable", "Coolable", "Sliceable")
    return lines + [f"({verb.lower()} {name})" for verb in properties if kind in actions[verb]]


def room_model(room: Furnished) -> RoomModel:
    """The same room for :func:`agentcredit.envs.alfworld_model.expert_turns`."""
    names = engine_names([*room.receptacles, *room.objects])
    contents: dict[str, list[str]] = {names[name]: [] for name in room.receptacles}
    for name, (_, place) in room.objects.items():
        contents[names[place]].append(names[name])
    locations = {names[name]: location for name, (_, location) in room.receptacles.items()}
    doors = package().constants.OPENABLE_CLASS_SET
    return RoomModel(
        contents, locations, {names[name] for name, (kind, _) in room.receptacles.items() if kind in doors}
    )


def engine_names(identifiers: Iterable[str]) -> dict[str, str]:
    """The names that texts use (``countertop 1``) by id, by the package's own rule."""
    from alfworld.agents.utils.misc import Demangler

    # PDDL has no upper case: the engine sees, and numbers in the order of, lower-case identifiers.
    mangled = {name: _mangle(name).lower() for name in identifiers}
    demangler = Demangler(game_infos={text: SimpleNamespace(id=text) for text in mangled.values()})
    return {name: demangler.demangle_alfred_name(text).strip() for name, text in mangled.items()}


def _mangle(name: str) -> str:
    for character, word in _MANGLED:
        name = name.replace(character, word)
    return name
