"""The reference graph against hand-drawn graphs and an independent shortest-path search."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path

from agentcredit.methods.reference_graph import GOAL, ReferenceGraph


def path(*states):
    return [(u, f"{u}>{v}", v) for u, v in pairwise(states)]


def graph_of(*paths, **kwargs):
    graph = ReferenceGraph(**kwargs)
    for states in paths:
        graph.insert(path(*states))
    return graph


def test_distances_of_a_hand_drawn_graph():
    graph = graph_of(["a", "b", "a", "c", GOAL], ["d", "e"])
    assert graph.goal_distances() == {GOAL: 0, "c": 1, "a": 2, "b": 3}
    assert graph.n_nodes == 6
    assert graph.edges() == {("a", "b"), ("b", "a"), ("a", "c"), ("c", GOAL), ("d", "e")}


def test_a_graph_without_a_way_to_the_goal_says_so():
    assert not graph_of(["a", "b"]).reaches_goal
    assert not ReferenceGraph().reaches_goal
    assert graph_of(["a", GOAL]).reaches_goal


def test_standing_still_is_no_edge():
    assert graph_of(["a", "a", GOAL]).edges() == {("a", GOAL)}


def test_own_steps_join_for_one_question_only():
    graph = graph_of(["a", "b", "c", GOAL])
    # x is reached from a and leads to c: a shortcut for x, none for a (a→x→c→GOAL is as long as a→b→c→GOAL)
    assert graph.distances_with(path("a", "x", "c")) == {"a": 3, "x": 2, "c": 1}
    # a shortcut from a straight to c shortens a
    assert graph.distances_with(path("a", "c", "z")) == {"a": 2, "c": 1}
    assert graph.goal_distances()["a"] == 3


def test_a_shortcut_reaches_states_behind_other_known_states():
    # The episode stands in p and later uses q→GOAL; p leads to q only through m, which the episode never saw.
    graph = graph_of(["p", "m", "q", "r", "s", GOAL])
    assert graph.distances_with([*path("p", "y"), *path("q", GOAL)])["p"] == 3


@pytest.mark.parametrize("seed", range(20))
def test_against_an_independent_search(seed):
    rng = np.random.default_rng(seed)
    names = [GOAL, *(f"n{i}" for i in range(1, 12))]
    known = [(int(u), int(v)) for u, v in rng.integers(0, 12, (14, 2)) if u != 0]
    own = [(int(u), int(v)) for u, v in rng.integers(0, 12, (6, 2)) if u != 0]
    graph = ReferenceGraph()
    graph.insert([(names[u], "x", names[v]) for u, v in known])
    got = graph.distances_with([(names[u], "x", names[v]) for u, v in own])
    matrix = np.zeros((12, 12))
    for u, v in known + own:
        if u != v:
            matrix[v, u] = 1  # reversed: from the goal backwards
    want = shortest_path(csr_matrix(matrix), unweighted=True, indices=0)
    for node in {n for edge in own for n in edge}:
        assert got.get(names[node], np.inf) == want[node]


def test_min_count_hides_rare_edges():
    graph = graph_of(["a", GOAL], ["a", "b", GOAL], ["a", "b", GOAL], min_count=2)
    assert graph.goal_distances() == {GOAL: 0, "b": 1, "a": 2}


def test_decay_forgets_what_is_not_seen_again():
    graph = graph_of(["a", GOAL], ["b", GOAL], min_count=0.5)
    for _ in range(3):
        graph.decay(0.75)  # .75, .5625, .42 < .5 for b; a is seen again in between
        graph.insert(path("a", GOAL))
    assert graph.goal_distances() == {GOAL: 0, "a": 1}
    assert graph.n_nodes == 2


def test_the_least_recent_nodes_go_first_and_the_goal_stays():
    graph = graph_of(["a", "b", GOAL], ["c", "d", GOAL], ["b", GOAL], max_nodes=4)
    assert set(graph.state_dict()["nodes"]) == {"c", "d", "b", GOAL}
    graph.insert(path("e", "f"))
    assert set(graph.state_dict()["nodes"]) == {"b", GOAL, "e", "f"}
    assert graph.edges() == {("b", GOAL), ("e", "f")}


def test_expected_cost_of_a_door_that_sticks():
    # From a, "push" opens the door one time in four; "walk" takes three sure steps. Expected: 4 pushes or 3 steps.
    graph = ReferenceGraph()
    graph.insert([("a", "push", "a")] * 3 + [("a", "push", GOAL)])
    assert graph.expected_costs_with([], cap=50, states=["a"])["a"] == pytest.approx(4.0, abs=1e-6)
    graph.insert([("a", "walk", "b"), ("b", "walk", "c"), ("c", "walk", GOAL)])
    costs = graph.expected_costs_with([("a", "walk", "b")], cap=50)
    assert costs == {"a": pytest.approx(3.0), "b": pytest.approx(2.0)}


def test_expected_cost_equals_distance_when_nothing_is_random():
    graph = graph_of(["a", "b", "a", "c", GOAL])
    own = path("a", "b", "a", "c", GOAL)
    assert graph.expected_costs_with(own, cap=30) == pytest.approx(graph.distances_with(own))


def test_state_survives_json():
    graph = graph_of(["a", "b", "a", "c", GOAL], ["a", "a", "c"])
    restored = ReferenceGraph()
    restored.load_state_dict(json.loads(json.dumps(graph.state_dict())))
    assert restored.state_dict() == graph.state_dict()
    assert restored.goal_distances() == graph.goal_distances()
    assert restored.n_nodes == graph.n_nodes
