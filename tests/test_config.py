"""The model itself: documented, strict, and hashed by what matters."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from agentcredit.config import RunConfig
from agentcredit.config_keys import allowed, keys


def test_every_key_is_documented_by_a_sentence():
    assert len(keys()) > 60
    for key, field in keys().items():
        assert field.description, key
        assert field.description[0].isupper() or field.description[0] == "`", key
        assert field.description.endswith("."), key


def test_what_every_key_takes_can_be_said_in_words():
    assert all(allowed(field) for field in keys().values())


@pytest.mark.parametrize("values", [{"sed": 1}, {"env": {"nam": "alfworld"}}, {"optim": {"lr": float("inf")}}])
def test_unknown_keys_and_infinite_numbers_are_errors(values):
    with pytest.raises(ValidationError):
        RunConfig.model_validate(values)


def test_a_configuration_does_not_change():
    with pytest.raises(ValidationError):
        RunConfig().seed = 3


def _with(**values) -> str:
    return RunConfig.model_validate(values).fingerprint()


def test_the_fingerprint_follows_what_may_change_a_result():
    base = RunConfig().fingerprint()
    assert len(base) == 8
    changes = [
        {"seed": 1},
        {"method": {"name": "rloo"}},
        {"method": {"params": {"kappa": 0.5}}},
        {"env": {"max_turns": 9}},
        {"optim": {"lr": 2e-4}},
        {"train": {"steps": 31}},
        {"train": {"eval_every": 3}},
    ]
    prints = [_with(**change) for change in changes]
    assert len({base, *prints}) == len(changes) + 1


def test_the_fingerprint_ignores_where_and_how_a_run_is_served():
    base = RunConfig().fingerprint()
    assert _with(name="x", out=Path("elsewhere"), track={"enabled": False}) == base
    assert _with(env={"processes": 8, "cache": False, "retries": 5}) == base
    assert _with(train={"checkpoint_every": 1, "keep_checkpoints": 9, "save_episodes": False}) == base
