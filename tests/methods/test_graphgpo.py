"""GraphGPO by hand, and what it falls back to."""

from __future__ import annotations

import numpy as np

from agentcredit.methods.graphgpo import Graphgpo, GraphgpoParams, distance_returns, group_distances
from agentcredit.methods.grpo import Grpo, GrpoParams
from agentcredit.methods.reference_graph import GOAL
from tests.methods.build import episode, group, random_groups, turn, walk


def test_distances_in_the_graph_of_all_siblings():
    # A→B→goal is known from the first; the second's D leads nowhere: one further than A, the furthest with a way.
    states = [["A", "B", GOAL], ["A", "D", "A"]]
    assert [d.tolist() for d in group_distances(states)] == [[2, 1, 0], [2, 3, 2]]


def test_without_a_success_nothing_is_nearer_than_anything():
    assert [d.tolist() for d in group_distances([["A", "B"], ["C", "A"]])] == [[1, 1], [1, 1]]


def test_returns_of_distances():
    distances = np.array([2.0, 3.0, 2.0, 0.0])
    assert distance_returns(distances, 0.5, change=False, scale=1.0).tolist() == [0.125, 0.25, 1.0]
    # Changes +1, −1, −2, each plus 1: 2, 0, −1.
    assert distance_returns(distances, 0.5, change=True, scale=1.0).tolist() == [0.25, 1.0, 2.0]


def test_by_hand():
    # A→B→goal wins; A→D→B fails, though its second step leads to where one step is left. Distances A 2, B 1, D 2.
    # Returns with γ=½: to B ½, to goal 1, to D ¼, to B ½. From A: {½, ¼}, mean 3/8: ±1/8. B and D: alone.
    # Episode part, centred: ±½.
    siblings = group(walk(["A", "B", "G"], True), walk(["A", "D", "B"], False))
    got = Graphgpo(GraphgpoParams(gamma=0.5, std=False)).advantages([siblings], metrics := {})[0]
    assert [a.tolist() for a in got] == [[0.625, 0.5], [-0.625, -0.5]]
    # The success came nearer with both steps; the failure with the second of its two (2, 2, 1).
    assert metrics == {"graphgpo/progress_in_fail": 0.5, "graphgpo/nonprogress_in_success": 0.0}


def test_the_step_part_of_a_group_that_failed_is_zero():
    siblings = group(walk(["A", "B"], False), walk(["A", "C", "A"], False))
    for a_T in Graphgpo(GraphgpoParams()).advantages([siblings], {})[0]:
        assert np.all(a_T == 0)


def test_omega_zero_is_grpo():
    groups = random_groups(np.random.default_rng(1))
    graph = Graphgpo(GraphgpoParams(omega=0.0)).advantages(groups, {}, 0.1)
    grpo = Grpo(GrpoParams()).advantages(groups, {}, 0.1)
    for a_ET, b_ET in zip(graph, grpo, strict=True):
        for a_T, b_T in zip(a_ET, b_ET, strict=True):
            np.testing.assert_array_equal(a_T, b_T)


def test_a_group_keeps_its_graph_to_itself():
    won = group(walk(["A", "B", "G"], True), walk(["A", "C"], False))
    lost = group(walk(["A", "B"], False), walk(["A", "C"], False))
    alone = Graphgpo(GraphgpoParams()).advantages([lost], {})[0]
    after = Graphgpo(GraphgpoParams()).advantages([won, lost], {})[1]
    assert [a.tolist() for a in alone] == [a.tolist() for a in after] == [[0.0], [0.0]]


def test_an_episode_that_never_acted_is_left_out():
    siblings = group(walk(["A", "G"], True), episode([], success=False))
    assert [len(a) for a in Graphgpo(GraphgpoParams()).advantages([siblings], {})[0]] == [1, 0]


def test_alike_states_are_one_node():
    # The second's "shelf 12" is the first's "shelf 11" for the graph (ratio 7/8): so its step to it is worth as much.
    won = episode([turn("A", "shelf 11"), turn("shelf 11", "G", reward=1.0)], True)
    lost = episode([turn("A", "shelf 12")], False)
    exact = Graphgpo(GraphgpoParams(std=False, gamma=0.5)).advantages([group(won, lost)], {})[0]
    alike = Graphgpo(GraphgpoParams(std=False, gamma=0.5, similarity=0.85)).advantages([group(won, lost)], {})[0]
    # To shelf 11: ½; to shelf 12, without a way: 3 steps, 1/8. From A: ±3/16 beside the episode's ±½.
    assert (exact[0][0], exact[1][0]) == (0.6875, -0.6875)
    assert (alike[0][0], alike[1][0]) == (0.5, -0.5)


def test_label_names_every_choice():
    assert Graphgpo(GraphgpoParams()).label() == "graphgpo(over=trajectory,std,gamma=0.1,omega=1,anchor=state_key)"
    label = Graphgpo(GraphgpoParams(normalize_distance=True, similarity=0.9, std=False, scale=10.0)).label()
    assert label.endswith("anchor=state_key,change,similarity=0.9,scale=10)")
