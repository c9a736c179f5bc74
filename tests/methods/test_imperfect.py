"""Graphs spoilt on purpose: how much, always the same, and never the stored ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.methods.graph_sources import GraphStore, SelfSource
from agentcredit.methods.imperfect import Corruption, ImperfectSource, corrupt
from agentcredit.methods.reference_graph import GOAL, ReferenceGraph
from agentcredit.methods.registry import build
from tests.methods.build import group, random_groups, task, tools, walk

KEY = ("instance", "toy/train/t0")


def ladder(n: int) -> ReferenceGraph:
    """s0 → s1 → … → GOAL, and a shortcut from every state two steps on."""
    states = [f"s{i}" for i in range(n)] + [GOAL]
    steps = [(states[i], "step", states[i + 1]) for i in range(n)]
    return ReferenceGraph.of(
        [(u, v, {a: 1.0}) for u, a, v in steps + [(states[i], "leap", states[i + 2]) for i in range(n - 1)]]
    )


def fan(n: int) -> ReferenceGraph:
    """n states, each one step from the goal."""
    return ReferenceGraph.of([(f"s{i}", GOAL, {"go": 1.0}) for i in range(n)])


def spoilt(graph, key=KEY, **chances):
    return corrupt(graph, Corruption(**chances), key)[0]


def test_nothing_is_corrupted_by_default():
    assert not Corruption(seed=3)
    same, share = corrupt(ladder(20), Corruption(), KEY)
    assert (list(same.transitions()), share) == (list(ladder(20).transitions()), 0.0)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_about_as_many_edges_as_asked_for_go_missing(p):
    clean = ladder(1000)
    left = spoilt(clean, edges=p).edges()
    assert left < clean.edges()
    # 1999 edges: the share's standard error is at most .011, so four of them are .045
    assert 1 - len(left) / len(clean.edges()) == pytest.approx(p, abs=0.045)


def test_a_missing_node_takes_its_edges_along_and_the_goal_stays():
    clean = ladder(1000)
    left = spoilt(clean, nodes=0.3, seed=1)
    gone = set(clean.nodes()) - set(left.nodes())
    assert len(gone) / 1000 == pytest.approx(0.3, abs=0.06)
    assert GOAL not in gone
    assert left.edges() == {(u, v) for u, v in clean.edges() if u not in gone and v not in gone}


def test_false_edges_join_the_graphs_own_nodes():
    clean = ladder(1000)
    added = spoilt(clean, spurious=0.3).edges() - clean.edges()
    assert spoilt(clean, spurious=0.3).edges() > clean.edges()
    assert len(added) / len(clean.edges()) == pytest.approx(0.3, abs=0.045)
    assert all(u != v and u != GOAL and {u, v} <= set(clean.nodes()) for u, v in added)
    assert len({u for u, _ in added}) > 300  # not all from a few nodes


def test_edges_to_the_goal_start_from_another_node():
    clean = ladder(3)  # s0 s1 s2; to the goal from s1 and s2
    moved = spoilt(clean, goal=1.0)
    inner = {(u, v) for u, v in clean.edges() if v != GOAL}
    assert {(u, v) for u, v in moved.edges() if v != GOAL} == inner
    starts = {u for u, v in moved.edges() if v == GOAL}
    assert starts <= {"s0", "s1", "s2"}
    assert starts
    # From a lone state there is no other node to start from.
    assert spoilt(fan(1), goal=1.0).edges() == {("s0", GOAL)}


def test_what_is_missing_stays_missing_while_the_graph_grows():
    small, large = ladder(50), ladder(80)
    common = {(u, v) for u, v in small.edges() & large.edges()}
    for chances in ({"edges": 0.4}, {"nodes": 0.3}):
        before, after = spoilt(small, **chances).edges(), spoilt(large, **chances).edges()
        assert before & common == after & common


def test_most_false_edges_stay_where_they_are_while_the_graph_grows():
    before = spoilt(ladder(300), spurious=0.5).edges() - ladder(300).edges()
    after = spoilt(ladder(303), spurious=0.5).edges()
    assert len(before & after) / len(before) > 0.9


def test_another_seed_and_another_graph_are_spoilt_otherwise():
    clean = ladder(50)
    one = spoilt(clean, edges=0.5).edges()
    assert spoilt(clean, edges=0.5).edges() == one
    assert spoilt(clean, edges=0.5, seed=1).edges() != one
    assert spoilt(clean, ("instance", "toy/train/t1"), edges=0.5).edges() != one


def test_the_share_counts_every_edge_that_was_changed():
    clean = ladder(3)  # five edges
    assert corrupt(clean, Corruption(edges=1.0), KEY)[1] == 1.0
    assert corrupt(clean, Corruption(nodes=1.0), KEY)[1] == 1.0
    assert corrupt(clean, Corruption(goal=1.0), KEY)[1] == 2 / 5


def test_an_unreachable_goal_is_the_base_and_the_stored_graph_is_clean():
    inner = SelfSource(GraphStore(100, 1.0), "success", "before")
    source = ImperfectSource(inner, Corruption(edges=1.0))
    source.before([group(walk(["a", "b", "end"], True))], tools())
    assert source.graph(task(), "instance") is None
    assert source.changed_share == 1.0
    assert inner.graph(task(), "instance").edges() == {("a", "b"), ("b", GOAL)}
    assert source.state_dict() == inner.state_dict()
    assert source.graphs()[KEY].edges() == set()


def test_a_graph_that_grew_is_spoilt_again():
    source = ImperfectSource(SelfSource(GraphStore(100, 1.0), "success", "before"), Corruption(edges=1e-9))
    source.before([group(walk(["a", "b", "end"], True))], tools())
    assert source.graph(task(), "instance").n_nodes == 3
    source.before([group(walk(["a", "c", "end"], True))], tools())
    assert source.graph(task(), "instance").n_nodes == 4


@pytest.mark.parametrize("level", ["instance", "lifted", "both"])
def test_a_resumed_run_meets_the_same_graphs(level):
    rng = np.random.default_rng(7)
    first, second = random_groups(rng, n_groups=8), random_groups(rng, n_groups=8)
    params = {"graph": level, "corrupt_edges": 0.3, "corrupt_spurious": 0.3, "corrupt_nodes": 0.1, "corrupt_goal": 0.3}
    whole, resumed, clean = (build(MethodConfig(name="proas", params=p)) for p in (params, params, {"graph": level}))
    for composition in (whole, clean):
        composition.credit(first, tools())
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert resumed.state_dict() == clean.state_dict()  # what is stored is not spoilt

    def credit(composition):
        assignment = composition.credit(second, tools())
        return np.concatenate([np.concatenate(c.advantage_TN) for g in assignment.credits for c in g]), assignment

    want, assignment = credit(whole)
    np.testing.assert_array_equal(credit(resumed)[0], want)
    assert not np.array_equal(credit(clean)[0], want)
    assert 0 < assignment.metrics["proas/corrupted_edges_share"] < 2
