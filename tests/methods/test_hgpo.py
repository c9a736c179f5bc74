"""HGPO by hand, and what it falls back to."""

from __future__ import annotations

import numpy as np
import pytest

from agentcredit.methods.gigpo import Gigpo, GigpoParams, discounted_scores, step_groups
from agentcredit.methods.grpo import Grpo, GrpoParams
from agentcredit.methods.hgpo import Hgpo, HgpoParams, hierarchical, history_labels
from tests.methods.build import group, random_groups, walk


def test_histories_of_each_length():
    anchors = [["A", "B", "A"], ["C", "B", "A"]]
    assert history_labels(anchors, 1).tolist() == [0, 1, 0, 2, 1, 0]
    assert history_labels(anchors, 2).tolist() == [-1, 0, 1, -1, 2, 1]  # (A,B) (B,A) against (C,B) (B,A)
    assert history_labels(anchors, 3).tolist() == [-1, -1, 0, -1, -1, 1]


def test_by_hand():
    # Both stand in B: the first came from A and wins (return 1), the second came from A too and loses, the third came from C
    # and wins. Level 1 of B: {1, 0, 1}, mean 2/3: 1/3, −2/3, 1/3. Level 2 (A,B): {1, 0}: ½, −½; the third has none.
    # Weights 2 and 3: first (2·1/3 + 3·½)/5 = 13/30, second −17/30, third 1/3 (its one item alone).
    # A: {1·½, 0} discounted by ½, mean ¼: ±¼ at level 1, its only level. C: alone, 0.
    siblings = group(walk(["A", "B", "G"], True), walk(["A", "B", "C"], False), walk(["C", "B", "G"], True))
    got = Hgpo(HgpoParams(history=1, std=False, gamma=0.5)).advantages([siblings], metrics := {})[0]
    np.testing.assert_allclose(np.concatenate(got), [1 / 4, 13 / 30, -1 / 4, -17 / 30, 0, 1 / 3], atol=1e-6)
    # 5 of 6 turns share their state with another, 2 of 6 also the state before it.
    assert metrics == {"hgpo/compared_at_level_1": 5 / 6, "hgpo/compared_at_level_2": 2 / 6}


def test_population_deviation():
    values = hierarchical(np.array([0.0, 1.0]), [np.array([0, 0])], None, 1.0, std=True)
    np.testing.assert_allclose(values, [-1, 1], atol=1e-5)  # std of {0, 1} with ddof=0 is ½


def test_a_tie_at_one_level_leaves_the_others_their_whole_weight():
    levels = [np.array([0, 0, 0]), np.array([0, 0, -1])]
    # Level 1: {1, 1, 0}: 1/3, 1/3, −2/3. Level 2: {1, 1}, a tie, so that only level 1 counts.
    got = hierarchical(np.array([1.0, 1.0, 0.0]), levels, None, 1.0, std=False)
    np.testing.assert_allclose(got, [1 / 3, 1 / 3, -2 / 3], atol=1e-6)


def test_base_group_reaches_turns_that_share_no_state():
    siblings = group(walk(["A", "G"], True), walk(["B", "C"], False))
    assert [a.tolist() for a in Hgpo(HgpoParams()).advantages([siblings], {})[0]] == [[0.0], [0.0]]
    got = Hgpo(HgpoParams(base_group=True, std=False)).advantages([siblings], {})[0]
    np.testing.assert_allclose(np.concatenate(got), [0.5, -0.5], atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_without_history_it_is_the_step_part_of_gigpo_by_population_deviation(alpha):
    for one in random_groups(np.random.default_rng(3), n_groups=4):
        got = np.concatenate(Hgpo(HgpoParams(history=0, alpha=alpha)).advantages([one], {})[0])
        returns = discounted_scores(one, 0.95, 0.0)
        labels = step_groups([t.state_key or t.observation for e in one.episodes for t in e.turns])
        for label in np.unique(labels):
            own = returns[labels == label]
            want = np.zeros(len(own)) if np.ptp(own) < 1e-12 else (own - own.mean()) / (own.std() + 1e-6)
            np.testing.assert_allclose(got[labels == label], want, atol=1e-5)


def test_a_world_of_one_state_each_is_grpo_with_the_base_group():
    groups = [group(walk(["A", "B"], True), walk(["C", "D"], False), walk(["E", "F"], True))]
    hgpo = Hgpo(HgpoParams(base_group=True)).advantages(groups, {})[0]
    grpo = Grpo(GrpoParams()).advantages(groups, {})[0]
    np.testing.assert_allclose(np.concatenate(hgpo), np.concatenate(grpo), rtol=1e-5)


def test_the_penalty_lowers_an_invalid_turn():
    groups = random_groups(np.random.default_rng(7))
    plain, penalised = (Hgpo(HgpoParams(std=False)).advantages(groups, {}, c) for c in (0.0, 0.5))
    invalid = np.array([not t.valid for g in groups for e in g.episodes for t in e.turns])
    moved = np.concatenate(
        [p - q for ps, qs in zip(penalised, plain, strict=True) for p, q in zip(ps, qs, strict=True)]
    )
    assert moved[invalid].sum() < 0 < moved[~invalid].sum()


def test_label_names_every_choice():
    assert Hgpo(HgpoParams()).label() == "hgpo(std,H=2,alpha=1,gamma=0.95,anchor=state_key)"
    label = Hgpo(HgpoParams(base_group=True, std=False, history=4)).label()
    assert label == "hgpo(over=trajectory,no-std,H=4,alpha=1,gamma=0.95,anchor=state_key)"
    assert Gigpo(GigpoParams()).label().startswith("gigpo(over=")
