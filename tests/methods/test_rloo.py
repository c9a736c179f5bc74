"""T3: on the behaviour policy, RLOO's advantage makes the exact policy gradient; GRPO's centring shrinks it by (G−1)/G."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from agentcredit.methods.grpo import Grpo, GrpoParams
from agentcredit.methods.rloo import Rloo, RlooParams
from tests.methods.build import episode, group, turn

LOGITS = np.array([0.3, -0.4, 0.1])
REWARDS = np.array([1.0, 0.25, 0.0])
G = 3


def expected_gradient(method) -> np.ndarray:
    """E over all G-tuples of bandit actions of (1/G) Σ_i A_i ∇log π(a_i), by enumeration."""
    pi = np.exp(LOGITS) / np.exp(LOGITS).sum()
    total = np.zeros(3)
    for actions in product(range(3), repeat=G):
        siblings = group(*(episode([turn(reward=REWARDS[a])], success=False) for a in actions))
        advantages = [a_T[0] for a_T in method.advantages([siblings], {})[0]]
        scores = [np.eye(3)[a] - pi for a in actions]
        weight = np.prod(pi[list(actions)])
        total += weight * sum(a * s for a, s in zip(advantages, scores, strict=True)) / G
    return total


def true_gradient() -> np.ndarray:
    pi = np.exp(LOGITS) / np.exp(LOGITS).sum()
    return pi * (REWARDS - pi @ REWARDS)


def test_rloo_is_unbiased():
    np.testing.assert_allclose(expected_gradient(Rloo(RlooParams())), true_gradient(), rtol=1e-10)


def test_grpo_without_std_is_the_same_direction_at_two_thirds():
    np.testing.assert_allclose(
        expected_gradient(Grpo(GrpoParams(std=False))), true_gradient() * (G - 1) / G, rtol=1e-10
    )


def test_public_lone_rollout_keeps_its_score():
    lone = group(episode([turn(reward=0.5)], success=False))
    assert Rloo(RlooParams(degenerate="public")).advantages([lone], {})[0][0].tolist() == [0.5]
    assert Rloo(RlooParams()).advantages([lone], {})[0][0].tolist() == [0.0]


def test_labels_name_the_choices():
    assert Rloo(RlooParams()).label() == "rloo(over=trajectory)"
    assert Rloo(RlooParams(baseline_over="step", degenerate="public")).label() == "rloo(over=step,degenerate=public)"
    assert Grpo(GrpoParams(std=False)).label() == "grpo(over=trajectory,no-std)"
    with pytest.raises(ValueError, match="baseline_over"):
        RlooParams.model_validate({"baseline_over": "batch"})
