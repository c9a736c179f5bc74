"""A graph as text, DOT and JSON, against what was written by hand."""

from __future__ import annotations

import json

from agentcredit.methods.graph_export import drawing, to_dot, to_plain, to_text
from agentcredit.methods.reference_graph import GOAL, ReferenceGraph

GRAPH = ReferenceGraph.of(
    [
        ("at room", "at fridge 1 | open fridge 1", {"open fridge 1": 2.0, "go to fridge 1": 3.0}),
        ("at fridge 1 | open fridge 1", GOAL, {'take "egg" \\ 1': 1.0}),
        ("at fridge 1 | open fridge 1", "at room", {"go\nback": 1.0}),
        ("at room", "at room", {"wait": 9.0}),
        ("at room", "at sea", {"swim": 0.5}),
    ]
)


def test_text():
    assert to_text(drawing("instance toy", GRAPH)) == (
        "instance toy: 4 nodes, 4 edges\n"
        "\n[0] distance 0\n    <GOAL>\n"
        "\n[1] distance 1\n    at fridge 1\n    open fridge 1\n"
        '  * -> [0]  take "egg" \\ 1 ×1\n'
        "    -> [2]  go\nback ×1\n"
        "\n[2] distance 2\n    at room\n"
        "  * -> [1]  go to fridge 1 ×3, open fridge 1 ×2\n"
        "  - -> [3]  swim ×0.5\n"
        "\n[3] no way to the goal\n    at sea\n"
    )


def test_dot_is_escaped():
    lines = to_dot(drawing('a "name"', GRAPH)).splitlines()
    assert lines[0] == 'digraph "a \\"name\\"" {'
    assert '  n0 [label="GOAL", shape=doublecircle];' in lines
    assert '  n1 [label="at fridge 1\\nopen fridge 1\\nd = 1"];' in lines
    assert '  n1 -> n0 [label="take \\"egg\\" \\\\ 1 ×1", style=bold, penwidth=2];' in lines
    assert '  n2 -> n3 [label="swim ×0.5", style=dashed];' in lines
    assert lines[-1] == "}"
    assert sum("doublecircle" in line for line in lines) == 1


def test_json():
    plain = json.loads(json.dumps(to_plain(drawing("toy", GRAPH))))
    assert plain["nodes"][1] == {
        "number": 1, "key": "at fridge 1 | open fridge 1", "distance": 1, "fields": ["at fridge 1", "open fridge 1"],
    }  # fmt: skip
    assert plain["nodes"][3]["distance"] is None
    assert plain["edges"][2] == {
        "start": 2, "end": 1, "actions": {"go to fridge 1": 3, "open fridge 1": 2}, "shortest": True, "used": True, "count": 5,
    }  # fmt: skip


def test_a_graph_without_a_way_says_so_and_an_edge_with_many_actions_is_cut():
    graph = ReferenceGraph.of([("a", "b", {f"go {i}": 1.0 for i in range(9)})])
    text = to_text(drawing("toy", graph))
    assert "No way to the goal is known." in text
    assert text.count(" ×1") == 4
    assert "and 5 more" in text
    assert len(to_plain(drawing("toy", graph))["edges"][0]["actions"]) == 9
