from __future__ import annotations

from pathlib import Path

import pytest

from agentcredit.comparison import members
from agentcredit.config_sources import resolve

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "experiments").rglob("*.toml"))


def test_there_are_experiments():
    assert {"cpu", "paper"} <= {path.relative_to(ROOT / "experiments").parts[0] for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_experiment_resolves_to_runs_that_differ_in_method_and_seed_alone(path: Path):
    config = resolve([path]).config
    runs = members(config)
    assert len({member.name for member in runs}) == len(config.compare.arms) * len(config.compare.seeds)
    assert len({member.config.comparison() for member in runs}) == 1
    assert {member.config.seed for member in runs} == set(config.compare.seeds)
