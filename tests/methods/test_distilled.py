"""Written graphs: what a file may say, where a state stands, and the advantages that follow."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.episodes import Task
from agentcredit.errors import MissingError, UsageError
from agentcredit.methods.distilled import DistilledSource
from agentcredit.methods.predicates import Predicate, vocabulary
from agentcredit.methods.reference_graph import GOAL
from agentcredit.methods.registry import build
from tests.methods.build import group, tools, walk

PICK = {
    "milestones": [
        {"name": "searching", "when": []},
        {"name": "seen", "when": ["seen >= 1"]},
        {"name": "held", "when": ["hold = target"]},
        {"name": "there", "when": ["hold = target", "at = destination"]},
    ],
    "edges": [["searching", "seen"], ["seen", "held"], ["held", "there"], ["there", GOAL]],
}
TASK = Task("alfworld", "train", "t0", "pick", "put it there", "0" * 16)
LOST = "seen 0 | hold nothing | ready 1 | at elsewhere | placed 0"
SEEN = "seen 1 | hold nothing | ready 1 | at target | placed 0"
HELD = "seen 1 | hold target | ready 1 | at elsewhere shut | placed 0"
THERE = "seen 1 | hold target | ready 1 | at destination shut | placed 0"


def written(path, graph=PICK, **changes):
    file = path / "graphs.json"
    file.write_text(json.dumps({"format": 1, "env": "alfworld", "graphs": {"pick": graph}} | changes))
    return file


def changed(**parts):
    return {**PICK, **parts}


def proas(file, **params):
    return build(MethodConfig(name="proas", params={"source": "distilled", "distilled": str(file), **params}))


def test_the_fields_of_a_key():
    alfworld, scienceworld = vocabulary("alfworld"), vocabulary("scienceworld")
    assert alfworld.parse(THERE) == {
        "seen": 1, "hold": "target", "ready": 1, "at": "destination", "shut": 1, "placed": 0,
    }  # fmt: skip
    assert alfworld.parse(LOST + " | lamp 1")["lamp"] == 1
    assert alfworld.parse("s0") is None
    assert scienceworld.parse("30|1100|010") == {"score": 30, "ordered": 2, "optional": 1}
    assert scienceworld.parse("failed|0|") == {"score": -1, "ordered": 0, "optional": 0}
    with pytest.raises(UsageError, match="Did you mean 'alfworld'"):
        vocabulary("alfwrld")


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("seen >= 1", True), ("seen>1", False), ("seen == 1", True), ("placed < 1", True), ("placed != 0", False),
        ("hold = target", True), ("hold != target", False), ("at = destination", True), ("shut = 0", False),
        ("lamp <= 1", False),  # there is no lamp in this key
    ],
)  # fmt: skip
def test_predicates(text, truth):
    words = vocabulary("alfworld")
    assert Predicate.parse(text, words).holds(words.parse(THERE)) is truth


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (
            changed(milestones=[{"name": "a", "when": ["sene >= 1"]}], edges=[["a", GOAL]]),
            "unknown field 'sene'. Did you mean 'seen'",
        ),
        (changed(edges=[*PICK["edges"][:-1]]), f"no edges lead from the milestone 'searching' to {GOAL}"),
        (changed(edges=[["searching", "sen"]]), "names no milestone 'sen'. Did you mean 'seen'"),
        (changed(edges=[[GOAL, "seen"]]), f"names no milestone '{GOAL}'"),
        (changed(milestones=PICK["milestones"] * 2), "'searching' is named twice"),
        (changed(milestones=[]), "graphs.pick.milestones, tuple should have at least 1 item"),
        (changed(edges=[["seen"]]), "at graphs.pick.edges.0"),
        (changed(color="red"), "at graphs.pick.color, extra inputs are not permitted"),
    ],
)
def test_a_graph_that_is_not_whole_is_refused_with_the_reason(graph, words, tmp_path):
    with pytest.raises(UsageError) as refused:
        DistilledSource.read(written(tmp_path, graph))
    assert words in str(refused.value)
    assert "graphs.json" in str(refused.value)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("hold >= target", "can only be compared by = and !="),
        ("hold = egg", "unknown value 'egg'"),
        ("seen = some", "compares the number 'seen' with 'some'"),
        ("seen", "is not a predicate"),
        ("", "is not a predicate"),
    ],
)
def test_a_condition_that_cannot_be_checked_is_refused(condition, words):
    with pytest.raises(UsageError, match=words):
        Predicate.parse(condition, vocabulary("alfworld"))


def test_other_files(tmp_path):
    with pytest.raises(MissingError, match="cannot be read: No such file"):
        DistilledSource.read(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        DistilledSource.read(tmp_path / "x.json")
    with pytest.raises(UsageError, match="at format"):
        DistilledSource.read(written(tmp_path, format=2))
    with pytest.raises(UsageError, match="environment 'toy' are not known"):
        DistilledSource.read(written(tmp_path, env="toy"))


def test_a_state_stands_at_the_furthest_milestone_whose_conditions_hold(tmp_path):
    source = DistilledSource.read(written(tmp_path))
    won = walk(["a", "b", "c", "d", "end"], True, of=TASK, lifted=[LOST, SEEN, HELD, THERE, THERE])
    assert source.nodes(won, "lifted") == ["searching", "seen", "held", "there", GOAL]
    odd = walk(["a", "b", "c"], False, of=TASK, lifted=["no such form", None, SEEN])
    assert source.nodes(odd, "lifted") == [None, None, "seen"]
    assert source.graph(TASK, "instance") is None


def test_of_milestones_at_equal_distance_the_one_written_last_counts(tmp_path):
    twins = {"milestones": [{"name": n, "when": []} for n in "abc"], "edges": [[n, GOAL] for n in "abc"]}
    source = DistilledSource.read(written(tmp_path, twins))
    assert source.nodes(walk(["a", "b"], False, of=TASK, lifted=[LOST, LOST]), "lifted") == ["c", "c"]


def test_advantages_by_hand(tmp_path):
    # Centred GRPO gives ±.5. The success stays at "searching" once, at a new place (half), and comes back to an old one
    # (nothing); then each step is a milestone. The failure stands still, drops the target (regret 2) and stands still:
    # raw 1, 2, 1 of κ=0, mean 4/3.
    won = walk(
        ["a", "b", "a", "c", "d", "e", "end"], True, of=TASK, lifted=[LOST, LOST, LOST, SEEN, HELD, THERE, THERE]
    )
    lost = walk(["d", "f", "c", "g"], False, of=TASK, lifted=[HELD, HELD, SEEN, SEEN])
    credit = proas(written(tmp_path), std=False).credit([group(won, lost)], tools())
    first, second = (np.concatenate(c.advantage_TN) for c in credit.credits[0])
    np.testing.assert_allclose(first, 0.5 * np.array([0.5, 0, 1, 1, 1, 1]))
    np.testing.assert_allclose(second, -0.5 * np.array([1, 2, 1]) * 3 / 4)
    assert credit.metrics["proas/tasks_with_goal_lifted"] == 1.0


def test_a_type_that_the_file_lacks_is_the_base(tmp_path):
    other = Task("alfworld", "train", "t1", "heat", "heat it", "0" * 16)
    episodes = walk(["a", "b", "a", "end"], True, of=other), walk(["a", "b"], False, of=other)
    credit = proas(written(tmp_path), std=False).credit([group(*episodes)], tools())
    assert np.concatenate(credit.credits[0][0].advantage_TN).tolist() == [0.5] * 3


def test_another_environment_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"has graphs of 'alfworld', and this is 'toy'"):
        proas(written(tmp_path)).credit([group(walk(["a", "b"], True))], tools())


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"source": "distilled"}, "belong together"),
        ({"distilled": "x.json"}, "belong together"),
        ({"source": "distilled", "distilled": "x.json", "graph": "instance"}, "graph=lifted or both"),
    ],
)
def test_parameters_that_do_not_go_together(params, words):
    with pytest.raises(UsageError, match=words):
        build(MethodConfig(name="proas", params=params))


def test_the_label_tells_contents_apart_and_a_resume_wants_the_same(tmp_path):
    method = proas(written(tmp_path))
    state = json.loads(json.dumps(method.state_dict()))
    proas(written(tmp_path)).load_state_dict(state)
    renamed = changed(milestones=[{**m, "when": []} if m["name"] == "held" else m for m in PICK["milestones"]])
    other = proas(written(tmp_path, renamed))
    assert method.label() != other.label()
    assert "distilled=graphs@" in method.label()
    with pytest.raises(UsageError, match="has changed since the checkpoint"):
        other.load_state_dict(state)
