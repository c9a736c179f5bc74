"""Composition: order of the parts, the penalty of invalid actions, metrics and state."""

from __future__ import annotations

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.errors import RunFailed
from agentcredit.methods.base import Assignment
from agentcredit.methods.compose import Composition
from agentcredit.methods.grpo import Grpo, GrpoParams
from agentcredit.methods.registry import build
from agentcredit.methods.rloo import Rloo, RlooParams
from tests.methods.build import episode, group, tools, turn, walk

CENTRED = Grpo(GrpoParams(std=False))


def one_invalid():
    """Two siblings of one turn each; both fail, one with an invalid action."""
    return group(episode([turn(tokens=3)], False), episode([turn(tokens=2, valid=False)], False))


def per_turn(assignment: Assignment):
    return [[[float(a[0]) for a in c.advantage_TN] for c in credits] for credits in assignment.credits]


def test_every_token_of_a_turn_gets_the_turns_advantage():
    siblings = group(episode([turn(tokens=3), turn(tokens=1, reward=1.0)], True), episode([turn(tokens=2)], False))
    credits = Composition(CENTRED, invalid_mode="off").credit([siblings], tools()).credits[0]
    assert [a.tolist() for a in credits[0].advantage_TN] == [[0.5] * 3, [0.5]]
    assert [a.tolist() for a in credits[1].advantage_TN] == [[-0.5] * 2]
    assert credits[0].ce_response_TN is None


def test_penalty_modes():
    # Centred scores: the penalty 0.1 on one of two turns is −0.05 there and +0.05 on the other, in both modes.
    for mode in ("residual", "before_norm"):
        got = per_turn(Composition(CENTRED, invalid_penalty=0.1, invalid_mode=mode).credit([one_invalid()], tools()))
        np.testing.assert_allclose(got, [[[0.05], [-0.05]]])
    assert per_turn(Composition(CENTRED, invalid_mode="off").credit([one_invalid()], tools())) == [[[0.0], [0.0]]]


def test_the_residual_is_on_the_estimators_own_scale():
    got = per_turn(Composition(Rloo(RlooParams()), invalid_penalty=0.1).credit([one_invalid()], tools()))
    np.testing.assert_allclose(got, [[[0.1], [-0.1]]])


class Doubling:
    """A shaper that doubles; to see what is added after it."""

    name, kind, Params, summary = "doubling", "shaper", GrpoParams, "Doubles."
    paper = Grpo.paper
    params = GrpoParams()

    def label(self):
        return "doubling()"

    def shape(self, groups, advantages, tools, metrics):
        return [[2 * a_T for a_T in a_ET] for a_ET in advantages]


def test_the_residual_is_added_after_the_shapers():
    won = group(episode([turn(reward=1.0)], True), episode([turn(valid=False)], False))
    composition = Composition(CENTRED, shapers=(Doubling(),), invalid_penalty=0.1)
    np.testing.assert_allclose(per_turn(composition.credit([won], tools())), [[[1.05], [-1.05]]])
    before = Composition(CENTRED, shapers=(Doubling(),), invalid_penalty=0.1, invalid_mode="before_norm")
    np.testing.assert_allclose(per_turn(before.credit([won], tools())), [[[1.1], [-1.1]]])
    assert composition.credit([won], tools()).metrics["credit/abs_advantage_base"] == pytest.approx(0.5)
    assert composition.credit([won], tools()).metrics["credit/abs_advantage"] == pytest.approx(1.05)


def test_metrics_tell_groups_with_a_signal_from_those_without():
    win, lose = walk(["a", "b"], True), walk(["a", "c"], False)
    groups = [group(win, win), group(lose, lose), group(win, lose), group(lose, lose)]
    metrics = Composition(CENTRED).credit(groups, tools()).metrics
    assert metrics["credit/groups_all_success"] == 0.25
    assert metrics["credit/groups_all_fail"] == 0.5
    assert metrics["credit/groups_mixed"] == 0.25
    assert metrics["credit/groups_zero_std"] == 0.75
    assert metrics["credit/groups_without_signal"] == 0.75
    assert metrics["credit/nonzero_share"] == 0.25


def test_a_penalty_alone_is_a_signal():
    metrics = Composition(CENTRED).credit([one_invalid()], tools()).metrics
    assert metrics["credit/groups_without_signal"] == 0.0
    assert metrics["credit/groups_zero_std"] == 1.0


class Halving:
    """An auxiliary that counts its calls and keeps that as state."""

    name, kind, Params, summary = "halving", "auxiliary", GrpoParams, "Halves."
    paper = Grpo.paper
    params = GrpoParams()

    def __init__(self):
        self.calls = 0

    def label(self):
        return "halving()"

    def extend(self, groups, assignment, tools):
        self.calls += 1
        assignment.metrics["halving/calls"] = self.calls
        return assignment

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def test_state_is_kept_by_method_name_and_refused_for_another_composition():
    first = Composition(CENTRED, auxiliaries=(Halving(),))
    first.credit([one_invalid()], tools())
    assert first.state_dict() == {"halving": {"calls": 1}}
    second = Composition(CENTRED, auxiliaries=(Halving(),))
    second.load_state_dict(first.state_dict())
    assert second.credit([one_invalid()], tools()).metrics["halving/calls"] == 2
    with pytest.raises(RunFailed, match=r"halving.*\[\]"):
        Composition(CENTRED).load_state_dict(first.state_dict())


def test_labels_of_compositions():
    assert build(MethodConfig(name="grpo")).label() == "grpo(over=trajectory,std)+invalid(residual,0.1)"
    assert build(MethodConfig(name="rloo", invalid_mode="off")).label() == "rloo(over=trajectory)+invalid(off)"
    assert build(MethodConfig(name="rloo", invalid_penalty=0.0)).label() == "rloo(over=trajectory)+invalid(off)"


def test_episodes_without_turns_and_an_empty_batch():
    empty = episode([], False)
    assignment = Composition(Grpo(GrpoParams())).credit([group(empty, walk(["a", "b"], True))], tools())
    assert assignment.credits[0][0].advantage_TN == ()
    # the empty episode still counts as a failure in the baseline over trajectories: returns 0 and 1, std 0.7071
    assert per_turn(assignment)[0][1][0] == pytest.approx(0.5 / 0.5**0.5, rel=1e-5)
    assert Composition(CENTRED).credit([], tools()).credits == []
