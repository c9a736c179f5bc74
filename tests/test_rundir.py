"""A run's folder: found again, never shared, never mixed with another configuration."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentcredit.config import RunConfig
from agentcredit.errors import MissingError, RunFailed, UsageError
from agentcredit.rundir import REPLACED, RunDir, default_name, differences


def config(out: Path, **values) -> RunConfig:
    return RunConfig.model_validate({"out": out, **values})


def test_the_default_name_says_what_the_run_is():
    made = RunConfig.model_validate(
        {"seed": 3, "method": {"name": "cope+proas", "base": "gigpo"}, "policy": {"model": "Qwen/Qwen2.5-7B-Instruct"}}
    )
    assert default_name(made) == f"alfworld__cope+proas-gigpo__Qwen2.5-7B-Instruct__s3__{made.fingerprint()}"


def test_a_run_is_made_and_taken_up_again(tmp_path: Path):
    with RunDir.open(config(tmp_path), origins={"seed": "--seed"}) as run:
        assert run.attempt == 1
        assert run.log_path == run.path / "logs" / "attempt-1.log"
        run.set_mlflow_run_id("abc")
        run.note(panel={"valid_seen": "00ff"})
        run.finish("interrupted")
    with RunDir.open(config(tmp_path)) as again:
        assert (again.path, again.attempt, again.mlflow_run_id) == (run.path, 2, "abc")
    info = again.info()
    assert [a["status"] for a in info["attempts"]] == ["interrupted", "running"]
    records = json.loads((run.path / "repro.json").read_text())["attempts"]
    assert records[0]["panel"] == {"valid_seen": "00ff"}
    assert records[1]["panel"] == {}
    assert records[1]["fingerprint"] == run.config.fingerprint()
    assert RunDir.load(run.path).config.compared() == run.config.compared()
    assert RunDir.find(tmp_path, "latest").path == run.path


def test_an_attempt_that_ended_without_a_word_was_killed(tmp_path: Path):
    RunDir.open(config(tmp_path)).close()
    with RunDir.open(config(tmp_path)) as run:
        assert [a["status"] for a in run.info()["attempts"]] == ["killed", "running"]


def test_another_configuration_is_refused_by_key_and_value(tmp_path: Path):
    RunDir.open(config(tmp_path, name="x")).close()
    with pytest.raises(UsageError) as caught:
        RunDir.open(config(tmp_path, name="x", seed=1, optim={"lr": 2e-4}))
    message = str(caught.value)
    assert "seed is 0 there and 1 here; optim.lr is 0.0001 there and 0.0002 here" in message
    assert "--fork" in message
    assert "--fresh" in message


def test_what_cannot_change_a_result_may_change(tmp_path: Path):
    RunDir.open(config(tmp_path, name="x")).close()
    with RunDir.open(config(tmp_path, name="x", env={"processes": 7})) as run:
        assert RunDir.load(run.path).config.env.processes == 7


def test_differences_name_whole_keys():
    one = RunConfig.model_validate({"method": {"params": {"kappa": 1.0}}})
    assert differences(one, RunConfig()) == [("method.params.kappa", 1.0, None)]


def test_fresh_puts_the_old_run_aside(tmp_path: Path):
    with RunDir.open(config(tmp_path, name="x")) as run:
        run.append_metrics(1, {"reward": 0.5})
    with RunDir.open(config(tmp_path, name="x", seed=1), fresh=True) as run:
        assert (run.attempt, run.metrics()) == (1, [])
        with pytest.raises(UsageError, match="is being trained by process"):
            RunDir.open(config(tmp_path, name="x", seed=1))
    [old] = (tmp_path / REPLACED).iterdir()
    assert RunDir.load(old).metrics() == [{"step": 1, "reward": 0.5}]
    assert RunDir.names(tmp_path) == ["x"]


def test_a_fork_continues_checkpoints_under_another_configuration(tmp_path: Path):
    with RunDir.open(config(tmp_path, name="x")) as run:
        run.append_metrics(1, {"reward": 0.5})
        (run.checkpoints / "step-000001").mkdir()
        (run.checkpoints / "step-000001" / "weights").write_text("w")
        run.set_mlflow_run_id("abc")
    changed = config(tmp_path, name="x", train={"steps": 60})
    with RunDir.open(changed, fork="y") as fork:
        assert fork.path == tmp_path / "y"
        assert fork.metrics() == [{"step": 1, "reward": 0.5}]
        assert (fork.checkpoints / "step-000001" / "weights").read_text() == "w"
        assert fork.mlflow_run_id == ""
        assert fork.info()["forked_from"] == "x"
    with RunDir.open(changed, fork="y") as again:
        assert again.attempt == 2
    with pytest.raises(UsageError, match=r"train\.steps is 60 there and 90 here"):
        RunDir.open(config(tmp_path, name="x", train={"steps": 90}), fork="y")
    assert RunDir.load(tmp_path / "x").config.train.steps == 30


def test_wrong_forks(tmp_path: Path):
    RunDir.open(config(tmp_path, name="x")).close()
    RunDir.open(config(tmp_path, name="y")).close()
    with pytest.raises(UsageError, match="x has no checkpoint to continue from"):
        RunDir.open(config(tmp_path, name="x"), fork="z")
    with pytest.raises(UsageError, match="y exists and is no fork of x"):
        RunDir.open(config(tmp_path, name="x"), fork="y")
    with pytest.raises(UsageError, match="give one of them"):
        RunDir.open(config(tmp_path, name="x"), fork="z", fresh=True)


@pytest.mark.parametrize("name", ["a/b", "..", ".x", "latest", "a b", "x" * 201])
def test_names_that_cannot_be_a_folder(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match="cannot name a run"):
        RunDir.open(config(tmp_path, name=name))


HOLD = """
import sys, time
from pathlib import Path
from agentcredit.config import RunConfig
from agentcredit.rundir import RunDir
run = RunDir.open(RunConfig(out=Path(sys.argv[1]), name="x"))
print("open", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(UsageError, match=f"x is being trained by process {holder.pid} on "):
            RunDir.open(config(tmp_path, name="x"))
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with RunDir.open(config(tmp_path, name="x")) as run:
            assert run.attempt == 2
    finally:
        holder.kill()
        holder.wait()


def test_metrics_and_episodes_after_a_checkpoint_are_forgotten(tmp_path: Path):
    with RunDir.open(config(tmp_path)) as run:
        for step in range(1, 5):
            run.append_metrics(step, {"reward": step / 10})
            run.write_episodes(step, [{"step": step}])
        with run.metrics_path.open("a") as stream:
            stream.write('{"step": 5, "rew')
        assert run.truncate_after(2) == 2
        assert run.metrics() == [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}]
        assert run.metrics_path.read_text().endswith("\n")
        assert run.episode_steps() == [1, 2]
        assert list(run.read_episodes(2)) == [{"step": 2}]
        run.append_metrics(3, {})
        assert run.metrics()[-1] == {"step": 3}
        assert run.truncate_after(0) == 3


def test_paths_of_evaluations(tmp_path: Path):
    run = RunDir(tmp_path / "x", RunConfig())
    assert run.eval_path("valid_seen", 12) == tmp_path / "x" / "eval" / "valid_seen-000012.jsonl"
    assert run.eval_path("valid_seen[48]", 12).name == "valid_seen-48-000012.jsonl"
    assert run.eval_path("test", -1).name == "test-start.jsonl"
    assert run.eval_path("test", -1, policy="random").name == "test-random.jsonl"
    assert run.eval_path("test", 12, other_temperature=0.0).name == "test-000012-t0.jsonl"
    assert run.eval_path("test", -1, other_temperature=0.25).name == "test-start-t0.25.jsonl"


def test_finding_a_run(tmp_path: Path):
    with pytest.raises(MissingError, match="There is no run in"):
        RunDir.find(tmp_path, "latest")
    for name in ("alfworld-a", "alfworld-b", "science"):
        RunDir.open(config(tmp_path, name=name)).close()
        time.sleep(0.01)
    assert RunDir.names(tmp_path) == ["alfworld-a", "alfworld-b", "science"]
    assert RunDir.find(tmp_path, "sci").name == "science"
    assert RunDir.find(tmp_path, "latest").name == "science"
    assert RunDir.find(Path("elsewhere"), str(tmp_path / "alfworld-a")).name == "alfworld-a"
    with pytest.raises(UsageError, match="alfworld-a, alfworld-b"):
        RunDir.find(tmp_path, "alf")
    with pytest.raises(UsageError, match="Did you mean 'science'"):
        RunDir.find(tmp_path, "sciense")
    with pytest.raises(MissingError, match="is not the folder of a run"):
        RunDir.load(tmp_path)


def test_a_password_in_a_tracking_address_is_not_stored(tmp_path: Path):
    uri = "postgresql://me:hunter2@host/db"
    with RunDir.open(config(tmp_path, track={"uri": uri}), origins={"track.uri": f"--set track.uri={uri}"}) as run:
        stored = [path.read_text() for path in run.path.iterdir() if path.is_file()]
    assert not any("hunter2" in text for text in stored)


def test_a_full_disk_is_one_sentence_and_lets_the_folder_go(tmp_path: Path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFailed, match=r"repro\.json: the disk is full"):
            RunDir.open(config(tmp_path, name="x"))
    with RunDir.open(config(tmp_path, name="x")) as run:
        assert run.attempt == 1
