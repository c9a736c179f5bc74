"""Credit by state or by progress teaches a searching policy faster than one advantage per episode (paired seeds)."""

from __future__ import annotations

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from tests.methods.search_world import learn

SEEDS, STEPS = (0, 1, 2), 16


def mean_success(name, **params):
    config = MethodConfig(name=name, params=params, invalid_mode="off")
    return float(np.mean([learn(config, seed, STEPS) for seed in SEEDS]))


@pytest.mark.slow
def test_methods_learn_and_credit_helps():
    # Of three seeds and 16 steps: grpo 0.26, gigpo 0.38, proas 0.34 and, with kappa = 0, 0.43; paired differences of proas
    # to grpo lie between 0.07 and 0.09. The policy starts at about 0.15.
    start = float(np.mean([learn(MethodConfig(invalid_mode="off"), seed, 1) for seed in SEEDS]))
    grpo = mean_success("grpo")
    assert grpo > start + 0.03
    assert mean_success("gigpo") > grpo + 0.04
    assert mean_success("proas") > grpo + 0.03
    assert mean_success("proas", kappa=0.0) > grpo + 0.06
