"""T1: group statistics by hand, and what must never change a group-relative advantage."""

from __future__ import annotations

import numpy as np
import pytest

from agentcredit.methods.outcome import fit_leave_one_out, fit_normalised, relative, split_turns
from tests.methods.build import episode, group, turn


def two_lengths():
    """Two siblings of 2 and 20 turns with returns 1 and 0."""
    short = episode([turn(), turn(reward=1.0)], success=True)
    return group(short, episode([turn()] * 20, success=False))


def centred(scores):
    return fit_normalised(scores, std=False)


def test_the_statistic_counts_each_sibling_once_over_trajectories():
    short, long = relative(two_lengths(), centred, "trajectory")
    assert short.tolist() == [0.5, 0.5]
    assert long.tolist() == [-0.5] * 20


def test_the_statistic_counts_each_turn_over_steps():
    # mean = 2/22: the long episode dominates
    short, long = relative(two_lengths(), centred, "step")
    np.testing.assert_allclose(short, 1 - 1 / 11)
    np.testing.assert_allclose(long, -1 / 11)


def test_normalised_by_the_unbiased_deviation():
    # mean 0.25, squared deviations 3·0.0625 + 0.5625 = 0.75, /3 = 0.25, std 0.5
    got = fit_normalised(np.array([1.0, 0, 0, 0]), std=True).apply(np.array([1.0, 0, 0, 0]))
    np.testing.assert_allclose(got, np.array([1.5, -0.5, -0.5, -0.5]) * (0.5 / 0.500001), rtol=1e-12)


def test_leave_one_out_is_the_mean_of_the_others():
    scores = np.array([3.0, 1.0, 2.0])
    assert fit_leave_one_out(scores).apply(scores).tolist() == [1.5, -1.5, 0.0]


@pytest.mark.parametrize("value", [0.0, 1.0, 9.9, 0.95**3 * 10])
@pytest.mark.parametrize("n", [2, 3, 7])
def test_equal_scores_give_exactly_zero(value, n):
    scores = np.full(n, value)
    for fit in (fit_normalised(scores, std=True), fit_normalised(scores, std=False), fit_leave_one_out(scores)):
        assert np.all(fit.apply(scores) == 0.0)


def test_a_lone_score_gives_zero_and_the_score_itself_in_public_code():
    score = np.array([2.0])
    assert fit_normalised(score, std=True).apply(score).tolist() == [0.0]
    assert fit_leave_one_out(score).apply(score).tolist() == [0.0]
    assert fit_normalised(score, std=False, degenerate="public").apply(score).tolist() == [2.0]
    assert fit_leave_one_out(score, degenerate="public").apply(score).tolist() == [2.0]


def test_a_penalty_in_a_group_of_equal_returns_does_not_explode():
    # Public code divides the penalised turn's −0.1 by 1e-6: an advantage of −100000.
    siblings = group(episode([turn(), turn(valid=False)], False), episode([turn()], False))
    ours = relative(siblings, lambda s: fit_normalised(s, std=True), "trajectory", penalty=0.1)
    public = relative(siblings, lambda s: fit_normalised(s, std=True, degenerate="public"), "trajectory", penalty=0.1)
    assert [a.tolist() for a in ours] == [[0.0, 0.0], [0.0]]
    assert public[0][1] == pytest.approx(-1e5)


def test_shift_and_scale_of_rewards_leave_normalised_advantages():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=8)
    base = fit_normalised(scores, std=True).apply(scores)
    moved = 10 * scores + 3
    np.testing.assert_allclose(fit_normalised(moved, std=True).apply(moved), base, rtol=1e-5)


def test_split_turns_cuts_by_episode():
    parts = split_turns(two_lengths(), np.arange(22.0))
    assert [len(p) for p in parts] == [2, 20]
    assert parts[1][0] == 2.0
