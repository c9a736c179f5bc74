"""DAPO and Dr.GRPO: what is kept, what replaces the rest, and the loss that belongs to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentcredit.config_sources import resolve
from agentcredit.methods.dapo import Dapo, DapoParams
from agentcredit.methods.drgrpo import Drgrpo, DrgrpoParams
from agentcredit.methods.grpo import Grpo, GrpoParams
from tests.methods.build import episode, group, random_groups, turn, walk
from tests.methods.vectors import cases


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in cases("va_dapo_filter")])
def test_groups_that_verl_agent_keeps(case: dict[str, Any]):
    size, returns = case["in"]["group_size"], case["in"]["episode_return"]
    dapo = Dapo(DapoParams())
    kept = []
    for first in range(0, len(returns), size):
        siblings = [episode([turn(reward=r)], success=False) for r in returns[first : first + size]]
        kept += range(first, first + size) if dapo.keeps(group(*siblings)) else []
    assert kept == case["out"]["kept"]


def test_penalties_do_not_make_a_contrast():
    siblings = group(episode([turn(valid=False)], False), episode([turn()], False))
    assert not Dapo(DapoParams()).keeps(siblings)
    assert Dapo(DapoParams(max_batches=1)).keeps(siblings)


def test_advantages_are_those_of_grpo():
    groups = random_groups(np.random.default_rng(2))
    for a_ET, b_ET in zip(
        Dapo(DapoParams()).advantages(groups, {}), Grpo(GrpoParams()).advantages(groups, {}), strict=True
    ):
        assert [a.tolist() for a in a_ET] == [b.tolist() for b in b_ET]


def test_dr_grpo_is_the_distance_from_the_mean():
    siblings = group(walk(["A", "G"], True), walk(["A", "B", "C"], False), walk(["A", "B"], False))
    got = Drgrpo(DrgrpoParams()).advantages([siblings], {})[0]
    np.testing.assert_allclose(np.concatenate(got), [2 / 3, -1 / 3, -1 / 3, -1 / 3])
    assert Drgrpo(DrgrpoParams()).label() == "drgrpo(over=trajectory)"


def test_the_loss_that_belongs_to_a_method_is_a_default(tmp_path: Path):
    def loss(*sets: str) -> tuple[float, str]:
        config = resolve(sets=sets).config.loss
        return config.clip_high, config.aggregation

    assert loss() == (0.2, "token-mean")
    assert loss("method.name=dapo") == (0.28, "token-mean")
    assert loss("method.name=proas", "method.base=dapo") == (0.28, "token-mean")
    assert loss("method.name=drgrpo") == (0.2, "seq-mean-token-sum-norm")
    assert loss("method.name=dapo", "loss.clip_high=0.3") == (0.3, "token-mean")
    assert resolve(sets=["method.name=dapo"]).origins["loss.clip_high"] == "default of dapo"


def test_label_names_every_choice():
    assert Dapo(DapoParams()).label() == "dapo(over=trajectory,std,batches=10)"
