"""Scores and state keys, on texts as the simulator writes them."""

from __future__ import annotations

import pytest

from agentcredit.envs.scienceworld import lifted_key, relative_score, state_key

LOOK = "This room is called the art studio. In it, you see: \n\tthe agent\n\ta cup (containing nothing)\n"
BAG = "In your inventory, you see:\n\tan orange\n\ta glass jar\n"
RULE = "-" * 100
PROGRESS = "\n".join(
    [
        "Completed keys: wood1", RULE, "Sequential Subgoals:", RULE,
        "0\ttrue\t                                GoalFind\tfocus on substance",
        "1\tfalse\t                 GoalChangeStateOfMatter\tsubstance is in a liquid state",
        RULE, "Unordered and Optional Subgoals:", RULE,
        "0\tfalse\t                    GoalInRoomWithObject\tbe in same location as water",
        "1\ttrue\t            GoalObjectsInSingleContainer\thave substance alone in a single container",
        "2\ttrue\t              GoalActivateDeviceWithName\tactivate heater (stove)",
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("score", "start", "share"),
    [(0, 0, 0.0), (100, 0, 1.0), (8, 8, 0.0), (100, 8, 1.0), (54, 8, 0.5), (-100, 8, 0.0), (4, 8, 0.0)],
)
def test_the_score_is_what_was_gained_of_what_could_be(score: int, start: int, share: float) -> None:
    assert relative_score(score, start) == pytest.approx(share)


def test_the_state_key_names_room_and_things_in_any_order() -> None:
    room, carried, _, score = state_key(LOOK, BAG, 33).split("|")
    assert (room, carried, score) == ("art studio", "a glass jar; an orange", "33")
    turned = "In your inventory, you see:\n\ta glass jar\n\tan orange\n"
    assert state_key(LOOK, turned, 33) == state_key(LOOK, BAG, 33)


@pytest.mark.parametrize(
    ("look", "bag", "score"),
    [(LOOK.replace("nothing", "paint"), BAG, 33), (LOOK, BAG.replace("jar", "cup"), 33), (LOOK, BAG, 34)],
)
def test_what_differs_has_another_state_key(look: str, bag: str, score: int) -> None:
    assert state_key(look, bag, score) != state_key(LOOK, BAG, 33)


@pytest.mark.parametrize(
    ("score", "bucket"), [(0, "0"), (9, "0"), (10, "10"), (67, "60"), (100, "100"), (-100, "failed")]
)
def test_the_lifted_key_is_score_by_tens_and_met_subgoals(score: int, bucket: str) -> None:
    assert lifted_key(PROGRESS, score) == f"{bucket}|10|011"
