from __future__ import annotations

import math

import numpy as np
import pytest

from agentcredit.stats.efficiency import reached, smoothed, speed_up

STEPS = np.array([0.0, 10, 20, 30, 40])


@pytest.mark.parametrize(
    ("curve", "stay", "where"),
    [
        ([0.2, 0.3, 0.5, 0.6, 0.7], 2, 15.0),  # from .3 at 10 to .5 at 20 the line crosses .4 half way
        ([0.2, 0.4, 0.5, 0.6, 0.7], 2, 10.0),  # exactly at the threshold counts
        ([0.5, 0.6, 0.5, 0.6, 0.7], 2, 0.0),  # there from the start
        ([0.2, 0.6, 0.3, 0.3, 0.5], 1, 5.0),  # .2 → .6 crosses .4 half way between 0 and 10
        ([0.2, 0.6, 0.3, 0.3, 0.5], 2, 35.0),  # it fell again; the last one has nothing left to stay through
        ([0.2, 0.6, 0.3, 0.3, 0.3], 2, math.inf),
        ([0.2, 0.6, 0.3, 0.3, 0.3], 1, 5.0),
        ([0.4, 0.2, 0.6, 0.6, 0.6], 2, 15.0),
        ([0.1, 0.1, 0.1, 0.1, 0.1], 2, math.inf),
    ],
)
def test_where_a_curve_reaches_a_threshold(curve, stay, where):
    assert reached(STEPS, np.array(curve), 0.4, stay) == pytest.approx(where)


def test_an_evaluation_above_it_that_was_followed_by_a_fall_gives_no_line_to_cross():
    # .5 at 10 does not stay; from 20 on it does, and the evaluation before is above already.
    assert reached(STEPS, np.array([0.1, 0.2, 0.5, 0.3, 0.6]), 0.4, 2) == pytest.approx(30 + 10 * 0.1 / 0.3)
    assert reached(np.array([0.0, 10, 20]), np.array([0.5, 0.3, 0.6]), 0.4, 3) == pytest.approx(10 + 10 * 0.1 / 0.3)


def test_many_curves_at_once():
    curves = np.array([[[0.0, 1.0], [0.0, 0.2]], [[1.0, 1.0], [0.0, 0.5]]])
    assert reached(np.array([0.0, 8.0]), curves, 0.5, 1).tolist() == [[4.0, math.inf], [0.0, 8.0]]


@pytest.mark.parametrize(("curve", "stay"), [([], 1), ([0.5], 0)])
def test_no_curve_and_no_stay_are_refused(curve, stay):
    with pytest.raises(ValueError, match="at least one evaluation"):
        reached(np.zeros(len(curve)), np.array(curve), 0.4, stay)


def test_smoothing_looks_back_and_takes_what_there_is():
    assert smoothed(np.array([1.0, 3.0, 5.0, 0.0]), 2) == pytest.approx([1.0, 2.0, 4.0, 2.5])
    assert smoothed(np.array([1.0, 3.0]), 1) == pytest.approx([1.0, 3.0])
    assert smoothed(np.array([1.0, 3.0]), 5) == pytest.approx([1.0, 2.0])


def matrix(curves, tasks=200, seed=0):
    """Successes [S, K, T] with exactly these rates, of tasks in an order of each seed's own."""
    rng = np.random.default_rng(seed)
    return np.array(
        [[rng.permutation(np.arange(tasks) < round(rate * tasks)) for rate in curve] for curve in curves], float
    )


def test_a_speed_up_is_the_ratio_of_the_medians():
    ours = matrix([[0.2, 0.6, 0.6, 0.6], [0.2, 0.6, 0.7, 0.7], [0.2, 0.3, 0.5, 0.6]])  # 5, 5 and 15: median 5
    base = matrix([[0.2, 0.2, 0.6, 0.6], [0.2, 0.3, 0.5, 0.7], [0.2, 0.2, 0.2, 0.6]])  # 15, 15 and 25: median 15
    x = np.tile([0.0, 10, 20, 30], (3, 1))
    found = speed_up(ours, base, x, x, 0.4)
    assert found.reached_S == pytest.approx((5, 5, 15))
    assert found.baseline_S == pytest.approx((15, 15, 25))
    assert found.ratio == pytest.approx(3.0)
    assert found.interval.low < 3.0 < found.interval.high
    assert found.interval.low > 0.9


def test_the_axis_may_be_each_runs_own():
    curves = matrix([[0.2, 0.6], [0.2, 0.6]])
    found = speed_up(curves, curves, np.array([[0.0, 20], [0, 20]]), np.array([[0.0, 10], [0, 10]]), 0.4)
    assert found.ratio == pytest.approx(0.5)


def test_a_threshold_that_is_not_reached_gives_no_ratio():
    base = matrix([[0.2, 0.2, 0.2], [0.2, 0.2, 0.5], [0.2, 0.2, 0.2]])
    ours = matrix([[0.2, 0.6, 0.6]] * 3)
    x = np.tile([0.0, 10, 20], (3, 1))
    found = speed_up(ours, base, x, x, 0.4)
    assert found.ratio is None
    assert found.baseline_S[1] == pytest.approx(10 + 10 * 0.2 / 0.3)
    assert math.isinf(found.baseline_S[0])
    assert found.censored > 0.5
    assert found.interval.high <= 20 / 0.02


def test_a_method_is_as_fast_as_itself():
    curves = matrix([[0.2, 0.35, 0.5, 0.6]] * 3)
    x = np.tile([0.0, 10, 20, 30], (3, 1))
    found = speed_up(curves, curves, x, x, 0.4)
    assert found.ratio == 1.0
    assert (found.interval.low, found.interval.high) == (1.0, 1.0)  # the same seeds and tasks on both sides


def test_the_interval_covers_as_often_as_it_says():
    """Two methods of equal speed, three seeds, 140 tasks: 1 lies within in nearly all of 60 experiments."""
    rates, x, inside = np.array([0.25, 0.35, 0.45, 0.5, 0.55]), np.tile(STEPS, (3, 1)), 0
    for trial in range(60):
        rng = np.random.default_rng(trial)
        one, other = (rng.random((3, 5, 140)) < rates[:, None] for _ in range(2))
        interval = speed_up(one, other, x, x, 0.4, draws=400).interval
        inside += interval.low <= 1 <= interval.high
    assert inside >= 54


@pytest.mark.parametrize("other", [np.zeros((3, 2, 4)), np.zeros((2, 2, 5)), np.zeros((2, 4))])
def test_other_seeds_or_tasks_are_refused(other):
    ours = np.zeros((2, 2, 4))
    with pytest.raises(ValueError, match="same seeds and tasks"):
        speed_up(ours, other, np.zeros((2, 2)), np.zeros((2, 2)), 0.4)
