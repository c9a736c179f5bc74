"""Credit by state or by progress teaches a searching policy faster than one advantage per episode (paired seeds)."""

from __future__ import annotations

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from tests.methods.search_world import learn

SEEDS, STEPS = (0, 1), 16


def mean_success(name, **params):
    config = MethodConfig(name=name, params=params, invalid_mode="off")
    return float(np.mean([learn(config, seed, STEPS) for seed in SEEDS]))


@pytest.mark.slow
def test_methods_learn_and_credit_helps():
    # Of these seeds and steps: grpo 0.25, gigpo 0.39, proas 0.43 and, with kappa = 1, 0.34. The policy starts at about 0.15.
    start = float(np.mean([learn(MethodConfig(invalid_mode="off"), seed, 1) for seed in SEEDS]))
    grpo = mean_success("grpo")
    assert grpo > start + 0.03
    assert mean_success("gigpo") > grpo + 0.05
    assert mean_success("proas") > grpo + 0.08
    assert mean_success("proas", kappa=1.0) > grpo + 0.04
