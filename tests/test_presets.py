"""Defaults of environments agree with what the environments say of themselves."""

import pytest

from agentcredit import presets
from agentcredit.config_keys import is_known
from agentcredit.envs.alfworld_generator import SIZES
from agentcredit.envs.panels import role_of


@pytest.mark.parametrize("size", ["small", "full"])
def test_alfworld_has_its_own_turn_budget(size: str):
    values = presets.defaults("alfworld", size, False, presets.TINY)
    assert values["env.max_turns"][0] == SIZES[size].default_max_turns


@pytest.mark.parametrize("env", ["alfworld", "scienceworld", "another"])
def test_splits_have_the_roles_that_they_are_used_for(env: str):
    values = presets.defaults(env, "small", False, presets.TINY)
    assert role_of(env, values["env.train_split"][0]) == "train"
    assert role_of(env, values["env.dev_split"][0]) == "dev"


@pytest.mark.parametrize("model", [presets.TINY, presets.SMOLLM2, "org/large"])
def test_every_key_exists(model: str):
    for env in ("alfworld", "scienceworld", "another"):
        assert all(is_known(key) for key in presets.defaults(env, "small", False, model))
