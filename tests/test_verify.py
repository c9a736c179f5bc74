"""Damage is found, and two runs are compared without regard to the machine's speed."""

from pathlib import Path

import pytest
import torch

from agentcredit.config import RunConfig
from agentcredit.rundir import RunDir
from agentcredit.training.checkpoint import save
from agentcredit.verify import disagreements, problems


def make(out: Path, name: str, weight: float = 1.0, reward: float = 0.5, seconds: float = 1.0, seed: int = 0) -> RunDir:
    with RunDir.open(RunConfig(out=out, name=name, seed=seed)) as run:
        for step in (1, 2):
            clock = {"time/step": seconds, "total/seconds": seconds, "proas/seconds": seconds}
            run.append_metrics(step, {"rollout/return": reward, "nan": float("nan"), **clock})
            run.write_episodes(step, [{"step": step}])
        save(run.checkpoints, 2, {"w": torch.full((3,), weight)}, {"m": torch.zeros(3)}, {})
    return run


def test_a_whole_run_has_no_problems(tmp_path: Path):
    assert problems(make(tmp_path, "x")) == []


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("weights", "step-000002: the SHA-256 of model.safetensors differs"),
        ("episodes", "step-000001.jsonl.zst is damaged"),
        ("empty", "step-000001.jsonl.zst holds no episode"),
        ("doubled", "steps 2 are there more than once"),
        ("gap", "the steps are not consecutive"),
        ("metrics", "metrics.jsonl is damaged: line 1"),
        ("evaluation", "valid_seen-000002.jsonl"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: str, sentence: str):
    run = make(tmp_path, "x")
    if damage == "weights":
        path = run.checkpoints / "step-000002" / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    elif damage == "episodes":
        path = run.episodes_path(1)
        path.write_bytes(path.read_bytes()[:-4])
    elif damage == "empty":
        run.write_episodes(1, [])
    elif damage == "doubled":
        run.append_metrics(2, {})
    elif damage == "gap":
        run.append_metrics(4, {})
    elif damage == "metrics":
        run.metrics_path.write_text("{\n" + run.metrics_path.read_text())
    else:
        run.eval_path("valid_seen", 2).write_text("{}\n")
    [problem] = problems(run)
    assert sentence in problem


def test_runs_that_differ_in_speed_alone_agree(tmp_path: Path):
    assert disagreements(make(tmp_path, "x"), make(tmp_path, "y", seconds=9.0)) == []


def test_what_differs_is_named(tmp_path: Path):
    one = make(tmp_path, "x")
    assert disagreements(one, make(tmp_path, "s", seed=1)) == ["seed: 0 and 1"]
    assert disagreements(one, make(tmp_path, "r", reward=0.25)) == [
        "step 1, rollout/return: 0.5 and 0.25",
        "step 2, rollout/return: 0.5 and 0.25",
    ]
    assert disagreements(one, make(tmp_path, "w", weight=1.5)) == ["model.safetensors, w: largest difference 0.5"]
    longer = make(tmp_path, "l")
    longer.append_metrics(3, {})
    assert disagreements(one, longer) == ["metrics: steps 1–2 and 1–3"]


def test_a_tolerance_is_a_tolerance(tmp_path: Path):
    one, other = make(tmp_path, "x"), make(tmp_path, "y", weight=1.0 + 1e-4, reward=0.5 + 1e-4)
    assert len(disagreements(one, other)) == 3
    assert disagreements(one, other, tolerance=1e-3) == []
    assert len(disagreements(one, other, tolerance=1e-6)) == 3
