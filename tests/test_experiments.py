from __future__ import annotations

from pathlib import Path

import pytest

from agentcredit.comparison import members
from agentcredit.config_sources import resolve
from agentcredit.methods.registry import build

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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arms_have_labels_of_their_own(path: Path):
    config = resolve([path]).config
    runs = members(config)
    labels = [build(member.config.method).label() for member in runs if member.config.seed == config.compare.seeds[0]]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("settings", ["cpu/cope.toml", "paper/cope/scienceworld-qwen2.5-7b.toml"])
@pytest.mark.parametrize(
    ("arms", "expected"),
    [
        ("horizon", ["grpo", "K=0", "K=1", "K=2", "K=4"]),
        ("lambda", ["grpo", "lambda=0.0001", "lambda=0.001", "lambda=0.01", "lambda=0.1"]),
        (
            "ablations",
            ["grpo", "K=2)", "K=0)", "K=0,invalid_filter=drop_row)", "success_filter=false", "group_norm=false"],
        ),
    ],
)
def test_arms_of_a_paper_run_in_settings_of_either_scale(settings: str, arms: str, expected: list[str]):
    folder = ROOT / "experiments"
    config = resolve([folder / settings, folder / "paper" / "cope" / f"{arms}.toml"]).config
    assert config.compare.seeds == (0, 1, 2)  # those of the settings
    runs = [member.config for member in members(config) if member.config.seed == 0]
    labels = [build(run.method).label() for run in runs]
    assert all(part in label for part, label in zip(expected, labels, strict=True))
    assert len({run.comparison() for run in runs}) == 1
