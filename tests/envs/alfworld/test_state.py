"""Keys from hand-made facts. The room: an egg in a fridge (door shut), an egg on a table, a microwave (door shut)."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from agentcredit.envs.alfworld_games import Game
from agentcredit.envs.alfworld_state import StateReader

ROOM = """receptacleatlocation fridge_1 l1; receptacleatlocation table_1 l2; receptacleatlocation microwave_1 l3;
openable fridge_1; openable microwave_1; cancontain fridge egg"""
START = "atlocation agent l0; inreceptacle egg_1 fridge_1; inreceptacle egg_2 table_1"
HEAT = Game("g", "pick_heat_then_place_in_recep", "", "", "", "", target="egg", destination="table", lamp="")
TWO = Game("g", "pick_two_obj_and_place", "", "", "", "", target="egg", destination="table", lamp="")


def facts(dynamic: str) -> dict[Any, set[Any]]:
    """Facts as the engine has them: by signature."""
    found: dict[Any, set[Any]] = defaultdict(set)
    for line in f"{ROOM}; {dynamic}".split(";"):
        name, *arguments = line.split()
        signature = _Signature(name)
        found[signature].add(_Fact(tuple(arguments)))
    return found


class _Signature(SimpleNamespace):
    def __init__(self, name: str) -> None:
        super().__init__(name=name)

    def __hash__(self) -> int:
        return hash(self.name)


class _Fact(SimpleNamespace):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(arguments=[SimpleNamespace(name=name) for name in names], names=names)

    def __hash__(self) -> int:
        return hash(self.names)


def reader(game: Game = HEAT) -> StateReader:
    return StateReader(game, facts(START), lambda argument: argument.name.replace("_", " "))


def test_the_start() -> None:
    at_start = reader()
    assert at_start.state_key() == "at room"
    assert at_start.lifted_key() == "seen 0 | hold nothing | ready 0 | at elsewhere | placed 0"


def test_a_shut_door_hides_the_target_and_an_open_one_shows_it() -> None:
    keys = reader()
    keys.update("The fridge 1 is closed.", facts("atlocation agent l1; inreceptacle egg_1 fridge_1"))
    assert keys.lifted_key() == "seen 0 | hold nothing | ready 0 | at elsewhere shut | placed 0"
    keys.update("In it, you see a egg 1.", facts("atlocation agent l1; inreceptacle egg_1 fridge_1; opened fridge_1"))
    assert keys.state_key() == "at fridge 1 | open fridge 1"
    assert keys.lifted_key() == "seen 1 | hold nothing | ready 0 | at target | placed 0"


def test_held_heated_and_placed() -> None:
    keys = reader()
    keys.update("You heat the egg 1.", facts("atlocation agent l3; holds agent egg_1; ishot egg_1; opened fridge_1"))
    assert keys.state_key() == "at microwave 1 | hold egg 1 | hot egg 1 | open fridge 1"
    assert keys.lifted_key() == "seen 1 | hold target | ready 1 | at tool shut | placed 0"
    keys.update("", facts("atlocation agent l2; inreceptacle egg_1 table_1; inreceptacle egg_2 table_1; ishot egg_1"))
    assert keys.state_key() == "at table 1 | hot egg 1 | moved egg 1: fridge 1 > table 1"
    assert keys.lifted_key() == "seen 1 | hold nothing | ready 0 | at destination | placed 1"


def test_of_two_both_are_counted_as_seen_and_as_placed() -> None:
    keys = reader(TWO)
    assert keys.lifted_key() == "seen 0 | hold nothing | ready 1 | at elsewhere | placed 1"
    keys.update("you see a egg 2, and a egg 1.", facts(START + "; inreceptacle egg_1 table_1"))
    assert keys.seen == ("egg 1", "egg 2")
    assert keys.lifted_key().endswith("placed 2")


def test_the_full_state_knows_what_was_seen_and_not_what_was_looked_at() -> None:
    unseen, seen, looked = reader(), reader(), reader()
    seen.update("you see a egg 1.", facts(START))
    looked.update("You are carrying nothing.", facts(START + "; checked table_1; not_checked agent"))
    assert unseen.full_state() == looked.full_state() != seen.full_state()
    seen.update("you see a egg 2.", facts(START))  # one is all that the task needs
    assert seen.seen == ("egg 1",)
    moved = reader()
    moved.update("", facts("atlocation agent l1; inreceptacle egg_1 fridge_1; inreceptacle egg_2 table_1"))
    assert moved.full_state() != unseen.full_state()
