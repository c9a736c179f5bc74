"""The expert wins games of every type in the engine, as the generator's model of a room foresaw."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from agentcredit.envs.alfworld_demonstrations import stored_episode
from agentcredit.envs.alfworld_games import Game
from agentcredit.envs.base import StepResult

THOUGHT = re.compile(r"(find|take|clean|heat|cool|use) [a-z]+|put [a-z]+ in [a-z]+")


@pytest.mark.alfworld
@pytest.mark.parametrize(("size", "games", "limit"), [("small", 12, 20), ("full", 6, 40)])
def test_games_of_every_type_are_won(inside: Callable[..., Any], size: str, games: int, limit: int) -> None:
    played = inside("experts", [[size, "valid_unseen", index] for index in range(games)])
    assert len({game["type"] for game in played}) == 6
    for game in played:
        steps, results = game["episode"]["steps"], game["episode"]["results"]
        assert len(steps) == game["foreseen"] <= limit
        assert len(results) == len(steps) + 1
        assert all(result["valid"] for result in results)
        assert [result["reward"] for result in results] == [0.0] * len(steps) + [1.0]
        assert [result["done"] for result in results] == [False] * len(steps) + [True]
        assert all(THOUGHT.fullmatch(step["thought"]) for step in steps)
        for result, step in zip(results, steps, strict=False):
            assert step["action"] in result["admissible"]


@pytest.mark.alfworld
def test_places_that_share_a_location_are_looked_into_without_going(inside: Callable[..., Any]) -> None:
    """In this room drawers 2 and 3 have one location, where the engine has no way to go from one to the other."""
    (game,) = inside("experts", [["full", "valid_seen", 24]])
    actions = [step["action"] for step in game["episode"]["steps"]]
    assert actions[-6:-2] == ["open drawer 2", "examine drawer 3", "open drawer 3", "take book 1 from drawer 3"]
    assert game["episode"]["results"][-1]["success"]


def test_a_stored_walkthrough_gets_the_sub_goal_that_each_command_serves() -> None:
    class Player:
        def reset(self, task_id: str, seed: int = 0) -> StepResult:
            return StepResult("room")

        def step(self, action: str) -> StepResult:
            return StepResult(action, success=action.startswith("put"))

    commands = ("go to fridge 1", "open fridge 1", "take egg 1 from fridge 1", "go to microwave 1",
                "heat egg 1 with microwave 1", "go to table 1", "put egg 1 in/on table 1")  # fmt: skip
    game = Game("g", "pick_heat_then_place_in_recep", "", "", "", "", "egg", "table", "", commands)
    episode = stored_episode(Player(), game)
    assert episode is not None
    assert [(step.thought, step.action) for step in episode.steps] == list(
        zip(
            ["find egg", "find egg", "take egg", "heat egg", "heat egg", "put egg in table", "put egg in table"],
            commands,
            strict=True,
        )
    )
