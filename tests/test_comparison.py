"""Which runs a comparison consists of: each method with its own defaults, and all of them comparable."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcredit.comparison import members
from agentcredit.config import RunConfig
from agentcredit.config_sources import Resolved, resolve

ARMS = (
    '[compare]\nseeds = [0]\narms = [{ method = "grpo" }, { method = "dapo" }, { method = "proas", base = "drgrpo" }]\n'
)


def resolved(tmp_path: Path, text: str = "") -> Resolved:
    path = tmp_path / "c.toml"
    path.write_text(text + ARMS)
    return resolve([path])


def runs(found: Resolved) -> list[RunConfig]:
    return [member.config for member in members(found.config, found.given)]


def test_an_arm_has_its_methods_own_defaults(tmp_path: Path):
    grpo, dapo, proas = runs(resolved(tmp_path))
    assert (grpo.loss.clip_high, dapo.loss.clip_high, proas.loss.clip_high) == (0.2, 0.28, 0.2)
    assert proas.loss.aggregation == "seq-mean-token-sum-norm"
    assert grpo.loss.aggregation != proas.loss.aggregation
    alone = resolve(sets=["method.name=dapo"]).config
    assert dapo.loss == alone.loss


def test_what_is_given_is_for_all_arms(tmp_path: Path):
    found = runs(resolved(tmp_path, "[loss]\nclip_high = 0.25\naggregation = 'token-mean'\n"))
    assert {config.loss.clip_high for config in found} == {0.25}
    assert {config.loss.aggregation for config in found} == {"token-mean"}


def test_a_methods_own_defaults_do_not_keep_it_from_being_compared(tmp_path: Path):
    found = runs(resolved(tmp_path))
    assert len({config.comparison() for config in found}) == 1
    assert len({config.fingerprint() for config in found}) == 3


@pytest.mark.parametrize("method", ["grpo", "dapo"])
def test_another_value_of_such_a_key_does(method: str):
    plain = resolve(sets=[f"method.name={method}"]).config
    other = resolve(sets=[f"method.name={method}", "loss.clip_high=0.3"]).config
    assert other.comparison() != plain.comparison()
