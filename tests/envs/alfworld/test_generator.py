"""Games are pure functions of their names, cover all task types and rooms, and stay what they were."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from agentcredit.envs.panels import committed

pytestmark = pytest.mark.alfworld

NAMES = [
    [size, split, index] for size in ("small", "full") for split in ("train", "valid_unseen") for index in range(6)
]


def test_a_name_gives_the_same_game_in_every_process(inside: Callable[..., Any]) -> None:
    first, second = inside("hashes", NAMES, hash_seed=1), inside("hashes", NAMES[::-1], hash_seed=2)
    assert first == second[::-1]
    assert len(set(first)) == len(NAMES)


@pytest.mark.parametrize("size", ["small", "full"])
def test_the_games_are_those_of_the_committed_panels(inside: Callable[..., Any], size: str) -> None:
    listings = inside("listings", size)
    assert listings["equal"]
    for split, count in (("valid_seen", 140), ("valid_unseen", 134)):
        rows = listings["rows"][split]
        types = Counter(kind for _, kind, _ in rows)
        assert (len(rows), len(types)) == (count, 6)
        assert max(types.values()) - min(types.values()) <= 1
        assert [row[0] for row in rows] == [f"{size}-v1/{split}/{index:06d}" for index in range(count)]
        assert len({content_hash for *_, content_hash in rows}) == count
        # Other games than these need another GENERATOR_VERSION, and so another panel.
        panel = committed("alfworld", f"generated games ({size}, v1)", split)
        assert panel is not None
        assert panel.tasks == tuple((task_id, content_hash) for task_id, _, content_hash in rows)


def test_small_games_keep_seven_receptacles_and_six_types(inside: Callable[..., Any]) -> None:
    for problem in inside("problems", [["small", "train", index] for index in range(30)]):
        assert 3 <= problem.count("(receptacleType ") <= 7
        types = set(re.findall(r"\(objectType \S+ (\w+)\)", problem))
        assert 2 <= len(types) <= 7  # a lamp comes on top
        assert problem.count("(receptacleAtLocation ") == problem.count("(receptacleType ")


def test_unseen_games_stand_in_the_24_rooms_that_training_never_shows(inside: Callable[..., Any]) -> None:
    rooms = inside("rooms")
    seen, unseen = ({number for task in rooms[part].values() for number in task} for part in ("seen", "unseen"))
    assert (len(seen), len(unseen), seen & unseen) == (96, 24, set())
    test_rooms = [{_mangled(name) for name in names} for names in rooms["receptacles"].values()]
    for problem in inside("problems", [["full", "valid_unseen", index] for index in range(12)]):
        # Receptacles with a pose are the room's own; scenery has random positions and is left out of the comparison.
        own = set(re.findall(r"\(receptacleType (\S+) ", problem))
        assert any(receptacles <= own for receptacles in test_rooms)


def test_unknown_names(inside: Callable[..., Any]) -> None:
    assert all(inside("refused", [["small", "train", 3553], ["small", "test", 0], ["large", "train", 0]]))


def _mangled(name: str) -> str:
    for character, word in (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_")):
        name = name.replace(character, word)
    return name
