"""T8: GiGPO by hand, and what it falls back to."""

from __future__ import annotations

import numpy as np
import pytest

from agentcredit.methods.gigpo import Gigpo, GigpoParams, discounted_returns, step_groups
from agentcredit.methods.grpo import Grpo, GrpoParams
from tests.methods.build import episode, group, random_groups, turn, walk


def test_discounted_returns():
    assert discounted_returns([0.0, 1.0, 2.0], 0.5).tolist() == [1.0, 2.0, 2.0]


def test_by_hand():
    # First episode: A→G with reward 1, so ret 1. Second: A→B→C without reward, so ret 0 and 0.
    # step group A: {1, 0}: mean .5 ⇒ ±.5; group B: alone ⇒ 0. Episode part (centred, over trajectories): ±.5.
    siblings = group(walk(["A", "G"], True), walk(["A", "B", "C"], False))
    got = Gigpo(GigpoParams(std=False, gamma=0.5)).advantages([siblings], metrics := {})[0]
    assert got[0].tolist() == [1.0]
    assert got[1].tolist() == [-1.0, -0.5]
    assert metrics == {"gigpo/step_group_size": 1.5, "gigpo/singleton_share": 0.5}


def test_discount_orders_the_actions_of_one_state():
    # A is left for the goal at once (ret 1) or after a detour through B back to A: rets .25 (A), .5 (B), 1 (A).
    siblings = group(walk(["A", "G"], True), walk(["A", "B", "A", "G"], True))
    got = Gigpo(GigpoParams(std=False, gamma=0.5)).advantages([siblings], {})[0]
    # group A: {1, .25, 1}, mean .75; the episode part is 0
    np.testing.assert_allclose(got[0], [0.25])
    np.testing.assert_allclose(got[1], [-0.5, 0.0, 0.25])


@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize("over", ["trajectory", "step"])
def test_omega_zero_is_grpo(std, over):
    groups = random_groups(np.random.default_rng(1))
    gigpo = Gigpo(GigpoParams(omega=0.0, std=std, baseline_over=over)).advantages(groups, {}, 0.1)
    grpo = Grpo(GrpoParams(std=std, baseline_over=over)).advantages(groups, {}, 0.1)
    for a_ET, b_ET in zip(gigpo, grpo, strict=True):
        for a_T, b_T in zip(a_ET, b_ET, strict=True):
            np.testing.assert_array_equal(a_T, b_T)


def test_all_fail_gives_zero():
    siblings = group(walk(["A", "B"], False), walk(["A", "C", "A"], False))
    for a_T in Gigpo(GigpoParams()).advantages([siblings], {})[0]:
        assert np.all(a_T == 0)


def test_the_state_key_tells_apart_what_looks_alike():
    # One observation, two states: with nothing and with the apple in hand.
    holding = episode([turn("shelf+apple", "G", observation="shelf", reward=1.0)], True)
    empty = episode([turn("shelf", "x", observation="shelf")], False)
    by_key = Gigpo(GigpoParams(std=False)).advantages([group(holding, empty)], {})[0]
    by_text = Gigpo(GigpoParams(std=False, anchor="obs")).advantages([group(holding, empty)], {})[0]
    assert [a.tolist() for a in by_key] == [[0.5], [-0.5]]
    assert [a.tolist() for a in by_text] == [[1.0], [-1.0]]


def test_without_a_state_key_the_text_is_the_anchor():
    siblings = group(episode([turn(observation="hall", reward=1.0)], True), episode([turn(observation="hall")], False))
    assert Gigpo(GigpoParams(std=False)).advantages([siblings], {})[0][0].tolist() == [1.0]


def test_similar_texts_join_the_first_that_is_alike():
    texts = ["you see a mug 1", "you see a mug 2", "a completely different place", "you see a mug 2"]
    assert step_groups(texts, 0.9).tolist() == [0, 0, 1, 0]
    assert step_groups(texts).tolist() == [0, 1, 2, 1]


def test_label_names_every_choice():
    assert Gigpo(GigpoParams()).label() == "gigpo(over=trajectory,std,gamma=0.95,omega=1,anchor=state_key)"
    label = Gigpo(GigpoParams(similarity=0.9, anchor="obs", degenerate="public")).label()
    assert "similarity=0.9" in label
    assert "degenerate=public" in label
