"""T6: the worked examples of ProAS, and what holds for any walk."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcredit.methods.progress import Verdict, loop_erased, measure, trajectory_distances
from agentcredit.methods.reference_graph import GOAL, ReferenceGraph

D_MAX = 30.0


def path(*states):
    return [(u, f"{u}>{v}", v) for u, v in pairwise(states)]


def actions(states):
    return [f"{u}>{v}" for u, v in pairwise(states)]


def view(states, graph, **options):
    return measure(states, actions(states), graph, d_max=D_MAX, **options)


@pytest.fixture
def graph():
    g = ReferenceGraph()
    g.insert(path("a", "b", "a", "c", GOAL))
    return g


SUCCESS = ["a", "b", "a", "c", GOAL]
FAILURE = ["a", "x", "y", "a", "c", "z"]


def test_the_success_of_t6(graph):
    seen = view(SUCCESS, graph)
    assert seen.distance.tolist() == [2, 3, 2, 1, 0]
    assert seen.useful.tolist() == [0, 0, 1, 1]
    assert view(SUCCESS, graph, mode="edge").useful.tolist() == [0, 1, 1, 1]
    assert view(SUCCESS, graph, mode="loop_erased").useful.tolist() == [0, 0, 1, 1]
    assert seen.novel.tolist() == [1, 0, 1, 1]
    assert seen.on_map == 1.0


def test_the_failure_of_t6(graph):
    seen = view(FAILURE, graph)
    assert seen.distance.tolist() == [2, 4, 3, 2, 1, 2]
    assert seen.gained.tolist() == [-2, 1, 1, 1, -1]
    assert seen.deviation.tolist() == [3, 0, 0, 0, 2]
    assert seen.useful.tolist() == [0, 0, 0, 1, 0]
    assert seen.on_map == pytest.approx(3 / 6)  # x, y and z are off the map


def test_other_readings_of_deviation(graph):
    assert view(FAILURE, graph, deviation="remaining").deviation.tolist() == [2, 1.5, 1, 0.5, 1]
    # actual rest + d̂_T − d̂_t with T = 5, d̂_T = 2: (5+2−2, 4+2−4, 3+2−3, 2+2−2, 1+2−1)
    assert view(FAILURE, graph, deviation="excess").deviation.tolist() == [5, 2, 2, 2, 2]


def test_a_walk_off_the_map_gets_one_step_further_each_time(graph):
    assert trajectory_distances(["a", "p", "q", "q"], actions("apqq"), graph, D_MAX).tolist() == [2, 3, 4, 4]
    assert view(["a", "p", "q", "q"], graph).deviation.tolist() == [2, 2, 1]


def test_a_start_off_the_map_is_at_the_cap_and_ways_from_it_are_relaxed(graph):
    got = trajectory_distances(["u", "v", "c"], actions("uvc"), graph, D_MAX)
    assert got.tolist() == [3, 2, 1]  # its own steps lead to c
    assert trajectory_distances(["u", "v"], actions("uv"), graph, D_MAX).tolist() == [D_MAX, D_MAX]


def test_unknown_states_are_passed_over(graph):
    seen = view(["a", None, "c", GOAL], graph)
    np.testing.assert_array_equal(seen.distance, [2, np.nan, 1, 0])
    np.testing.assert_array_equal(seen.useful, [np.nan, np.nan, 1])
    np.testing.assert_array_equal(seen.deviation, [np.nan, np.nan, 0])
    np.testing.assert_array_equal(seen.novel, [np.nan, 1, 1])


def test_slack_lets_a_detour_of_equal_length_pass():
    graph = ReferenceGraph()
    graph.insert(path("a", "c", GOAL))
    graph.insert(path("a", "b", "c"))
    graph.insert(path("b", "e", GOAL))
    walked = ["a", "b", "a", "c", GOAL]  # b is as far as a
    assert view(walked, graph).distance.tolist() == [2, 2, 2, 1, 0]
    assert view(walked, graph).useful.tolist() == [0, 0, 1, 1]
    assert view(walked, graph, slack=True).useful.tolist() == [1, 0, 1, 1]  # back to a is no detour but a loop


def test_loop_erasure_keeps_the_way_that_is_left():
    assert loop_erased(["a", "b", "a", "c"]).tolist() == [False, False, True]
    assert loop_erased(["a", "b", "c", "b", "d"]).tolist() == [True, False, False, True]
    assert loop_erased(["a", "a", "b"]).tolist() == [False, True]
    assert loop_erased(["a", None, "b"]).tolist() == [True, True]


def test_the_better_verdict_of_two_levels(graph):
    # The task's graph calls x a detour; the role-level graph sees a milestone there, and nothing afterwards.
    lifted = ReferenceGraph()
    lifted.insert(path("start", "found", GOAL))
    fine = view(["a", "x", "y"], graph)
    coarse = view(["start", "found", "found"], lifted)
    assert fine.deviation.tolist() == [2, 2]
    assert coarse.deviation.tolist() == [0, 1]
    both = Verdict.of([fine, coarse])
    assert both.useful.tolist() == [1, 0]
    assert both.deviation.tolist() == [0, 1]
    assert both.novel.tolist() == [1, 1]  # y is new to the task's graph though not to the roles


def test_a_level_that_does_not_know_leaves_the_word_to_the_other(graph):
    lifted = ReferenceGraph()
    lifted.insert(path("start", "found", GOAL))
    both = Verdict.of([view(["a", None, "c"], graph), view(["start", "start", "found"], lifted)])
    assert both.useful.tolist() == [0, 1]
    assert both.novel.tolist() == [0, 1]  # start again by role; c is new


STATES = st.lists(st.sampled_from(["a", "b", "c", "x", "y", "z", None]), min_size=2, max_size=12)
EDGES = st.lists(st.tuples(st.sampled_from("abcxy"), st.sampled_from([*"abcxy", GOAL])), max_size=12)


@given(STATES, EDGES, st.booleans(), st.sampled_from(["record", "edge", "loop_erased"]), st.booleans())
def test_one_step_gains_at_most_one_on_any_graph(states, edges, success, mode, slack):
    graph = ReferenceGraph()
    graph.insert([("b", "x", GOAL), *((u, "x", v) for u, v in edges)])
    if success:
        states = [*states[:-1], GOAL]
    seen = view(states, graph, mode=mode, slack=slack)
    known = ~np.isnan(seen.gained)
    assert np.all(seen.gained[known] <= 1)
    assert np.all(seen.deviation[known] >= 0)
    assert np.array_equal(known, ~np.isnan(seen.useful))
    assert np.all(seen.distance[~np.isnan(seen.distance)] <= D_MAX)
    if success and states[-2] is not None:
        assert seen.useful[-1] == 1


@given(STATES, EDGES)
def test_renaming_states_changes_nothing(states, edges):
    def measured(rename):
        graph = ReferenceGraph()
        graph.insert([(rename(u), "x", rename(v)) for u, v in [("b", GOAL), *edges]])
        return view([None if s is None else rename(s) for s in states], graph)

    plain = measured(lambda s: s)
    renamed = measured(lambda s: s if s == GOAL else f"place {ord(s) * 7 % 31}")
    for name in ("distance", "useful", "deviation", "novel"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(renamed, name))


@given(STATES, EDGES, st.floats(0.0, 1.0))
def test_expected_costs_are_finite_on_any_graph(states, edges, share):
    graph = ReferenceGraph()
    graph.insert([("b", "x", GOAL), *((u, "x" if share < 0.5 else u + v, v) for u, v in edges)])
    seen = view(states, graph, cost="expected")
    known = np.array([s is not None for s in states])
    assert np.all(np.isfinite(seen.distance[known]))
    assert np.all(seen.deviation[~np.isnan(seen.deviation)] >= 0)
