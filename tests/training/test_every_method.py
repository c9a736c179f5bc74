"""Every method trains, is stopped, and goes on to the same bits; what it logs is in MLflow.

On the toy corridor always. On ALFWorld and ScienceWorld, where ten steps are killed at a random moment, with ``make
test-methods``: an hour of two cores is too long for ``make test``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentcredit.methods.registry import get, names
from agentcredit.rundir import RunDir
from tests.training import toy_run
from tests.training.test_loop import StopAfter, numbers, weights

OWN_NAMES = {"dapo": "rollout/batches"}
"""Methods whose own numbers have the trainer's names; grpo and its like have none but the generic ``credit/…``."""


def own_metrics(name: str, keys: set[str]) -> set[str]:
    """Of the logged names those that are the method's own."""
    prefix = OWN_NAMES.get(name, f"{name}/")
    found = {key for key in keys if key.startswith(prefix)}
    return found or ({key for key in keys if key.startswith("credit/")} if get(name).kind == "estimator" else set())


def logged_in_mlflow(run: RunDir) -> set[str]:
    from mlflow import MlflowClient

    from agentcredit.tracking import sqlite_uri

    client = MlflowClient(tracking_uri=sqlite_uri(run.path.parent))
    return set(client.get_run(run.mlflow_run_id).data.metrics)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path_factory.getbasetemp() / "home-of-loop-tests"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    toy_run.register_toy(monkeypatch)


@pytest.mark.parametrize("name", names())
def test_a_method_that_was_stopped_goes_on_to_the_same_bits(toy: None, tmp_path: Path, name: str):
    def config(folder: str):
        trial = dict(getattr(get(name), "trial", {}))
        return toy_run.config(
            tmp_path / folder,
            method__name=name,
            method__params=trial,
            train__steps=3,
            train__eval_every=0,
            train__eval_tasks=1,
        )

    undisturbed = toy_run.run_training(config("undisturbed"))
    with pytest.raises(KeyboardInterrupt):
        toy_run.run_training(config("stopped"), StopAfter(2))
    resumed = toy_run.run_training(config("stopped"))
    assert numbers(resumed) == numbers(undisturbed)
    assert weights(resumed) == weights(undisturbed)
    assert own_metrics(name, logged_in_mlflow(resumed))


SMALL = [
    "train.steps=10",
    "train.tasks_per_step=2",
    "train.group_size=4",
    "train.eval_every=0",
    "train.eval_tasks=2",
    "train.checkpoint_every=1",
    "optim.lr=1e-4",
    "env.processes=1",
    "policy.restrict_actions=false",
]
BENCHMARKS = {
    "alfworld": ["env.size=small", "env.max_turns=16", "tiny.games=3553", "tiny.updates=3000"],
    "scienceworld": [
        'env.task_types=["find-non-living-thing"]',
        "env.max_turns=12",
        "tiny.games=24",
        "tiny.updates=300",
    ],
}


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("env", BENCHMARKS)
@pytest.mark.parametrize("name", names())
def test_kill_9_on_a_benchmark(tmp_path: Path, env: str, name: str):
    sets = [word for setting in (*SMALL, *BENCHMARKS[env]) for word in ("--set", setting)]
    for key, value in dict(getattr(get(name), "trial", {})).items():
        sets += ["--set", f"method.params.{key}={json.dumps(value)}"]

    def command(folder: str) -> list[str]:
        train = [sys.executable, "-m", "agentcredit", "train", "--env", env, "--method", name, "--name", "it"]
        return [*train, "--out", str(tmp_path / folder), *sets]

    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run(command("undisturbed"), env=environ, check=True, capture_output=True)
    metrics = tmp_path / "killed" / "it" / "metrics.jsonl"
    process = subprocess.Popen(command("killed"), env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    steps = random.Random(f"{env} {name}").randint(2, 7)
    while process.poll() is None and (not metrics.exists() or len(metrics.read_text().splitlines()) <= steps):
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it was killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(command("killed"), env=environ, check=True, capture_output=True)

    one, other = (RunDir.load(tmp_path / folder / "it") for folder in ("undisturbed", "killed"))
    assert [record["step"] for record in other.metrics()] == list(range(11))
    assert numbers(other) == numbers(one)
    assert weights(other) == weights(one)
    assert own_metrics(name, logged_in_mlflow(other))
