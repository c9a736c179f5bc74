"""Against a real SQLite store; the numbers are read back with SQL, past MLflow's own client."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentcredit.config import TrackConfig
from agentcredit.errors import RunFailed, UsageError
from agentcredit.tracking import MlflowTracker, NullTracker, clean_names, flatten, mask, open_tracker, sqlite_uri


@pytest.fixture(autouse=True)
def no_server_of_the_machine(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def prepared_store(tmp_path_factory) -> Path:
    """An empty store with MLflow's tables, made once: copying it saves each test the two seconds of making them."""
    folder = tmp_path_factory.mktemp("store")
    tracker = open_tracker(TrackConfig(experiment="first"), sqlite_uri(folder))
    tracker.start("first", {}, {})
    tracker.finish("FINISHED")
    return folder / "mlflow.db"


@pytest.fixture
def store(tmp_path, prepared_store) -> Path:
    (tmp_path / "mlflow.db").write_bytes(prepared_store.read_bytes())
    return tmp_path


def opened(store: Path, **config) -> MlflowTracker:
    tracker = open_tracker(TrackConfig(**config), sqlite_uri(store))
    assert isinstance(tracker, MlflowTracker)
    return tracker


def query(store: Path, sql: str, *values):
    with sqlite3.connect(store / "mlflow.db", timeout=30) as connection:
        return connection.execute(sql, values).fetchall()


def points(store: Path, run_id: str) -> list[tuple[str, int, float]]:
    return query(store, "SELECT key, step, value FROM metrics WHERE run_uuid = ? ORDER BY key, step", run_id)


def test_a_run_with_its_numbers(store):
    tracker = opened(store)
    run_id = tracker.start("proas-s0", {"env": {"name": "alfworld"}, "seed": 0}, {"method": "proas"})
    tracker.log(-1, {"dev/success": 0.25})
    for step in range(3):
        tracker.log(step, {"reward": step / 4, "loss": -step})
    tracker.finish("FINISHED")
    tracker.finish("FINISHED")
    assert points(store, run_id) == [
        ("dev/success", -1, 0.25),
        *[("loss", step, -step) for step in range(3)],
        *[("reward", step, step / 4) for step in range(3)],
    ]
    assert query(store, "SELECT key, value FROM params WHERE run_uuid = ? ORDER BY key", run_id) == [
        ("env.name", "alfworld"),
        ("seed", "0"),
    ]
    assert query(store, "SELECT name, status FROM runs WHERE run_uuid = ?", run_id) == [("proas-s0", "FINISHED")]
    assert ("method", "proas") in query(store, "SELECT key, value FROM tags WHERE run_uuid = ?", run_id)


def test_resuming_adds_only_what_is_missing(store):
    first = opened(store)
    run_id = first.start("run", {"a": 1}, {})
    for step in range(5):
        first.log(step, {"reward": step})
    # No finish: the process was killed. The next attempt restarts from the checkpoint of step 2 and says more names.
    second = opened(store)
    assert second.start("run", {"a": 1, "b": 2}, {}, run_id) == run_id
    assert query(store, "SELECT status FROM runs WHERE run_uuid = ?", run_id) == [("RUNNING",)]
    for step in range(2, 8):
        second.log(step, {"reward": step, "late": step})
    second.finish("FINISHED")
    assert points(store, run_id) == [
        *[("late", step, step) for step in range(2, 8)],
        *[("reward", step, step) for step in range(8)],
    ]
    assert query(store, "SELECT count(*) FROM params WHERE run_uuid = ?", run_id) == [(2,)]


def test_a_step_said_twice_is_there_once(store):
    tracker = opened(store)
    run_id = tracker.start("run", {}, {})
    tracker.log(3, {"reward": 1.0})
    tracker.log(3, {"reward": 2.0, "dev/success": 0.5})
    assert points(store, run_id) == [("dev/success", 3, 0.5), ("reward", 3, 1.0)]


CHILD = """
import sys
from pathlib import Path
from agentcredit.config import TrackConfig
from agentcredit.tracking import open_tracker, sqlite_uri
store, run_id, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
tracker = open_tracker(TrackConfig(), sqlite_uri(store))
run_id = tracker.start("run", {"seed": 0}, {}, run_id or None)
(store / "id").write_text(run_id)
for step in range(steps):
    tracker.log(step, {f"m{i}": step for i in range(20)})
    print(step, flush=True)
tracker.finish("FINISHED")
"""


def child(store: Path, run_id: str, steps: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(store), run_id, str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_and_repeated_it_is_one_run_with_every_step_once(store):
    process = child(store, "", 100_000)
    assert process.stdout
    while process.stdout.readline().strip() != "6":
        assert process.poll() is None
    time.sleep(0.03)  # somewhere in a write
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run_id = (store / "id").read_text()
    written = max(step for _, step, _ in points(store, run_id))
    # A step is written as a whole: no number of the last step is missing.
    assert len([step for _, step, _ in points(store, run_id) if step == written]) == 20

    again = child(store, run_id, written + 4)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert points(store, run_id) == sorted((f"m{i}", step, step) for i in range(20) for step in range(written + 4))
    assert query(store, "SELECT count(*), max(status) FROM runs WHERE name = 'run'") == [(1, "FINISHED")]


def test_two_processes_share_a_new_file_and_are_quiet(tmp_path):
    # Both start on a file that does not exist yet: tables, experiment and runs are made once.
    children = [child(tmp_path, "", 15) for _ in range(2)]
    for process in children:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        assert errors == ""
    assert query(tmp_path, "SELECT count(*) FROM experiments WHERE name = 'agentcredit'") == [(1,)]
    rows = query(
        tmp_path, "SELECT run_uuid, count(*), count(DISTINCT key || '@' || step) FROM metrics GROUP BY run_uuid"
    )
    assert [row[1:] for row in rows] == [(300, 300), (300, 300)]


def test_a_locked_file_is_waited_for_and_then_kept_for_later(store, caplog, monkeypatch):
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

    tracker = opened(store)
    run_id = tracker.start("run", {}, {})
    monkeypatch.setattr("agentcredit.tracking.time.sleep", lambda seconds: None)
    real, failures = MlflowClient.log_batch, iter(range(8))

    def locked(self, *arguments, **named):
        if next(failures, None) is not None:
            raise MlflowException("database is locked", error_code=TEMPORARILY_UNAVAILABLE)
        return real(self, *arguments, **named)

    monkeypatch.setattr(MlflowClient, "log_batch", locked)
    tracker.log(0, {"reward": 1.0})  # six tries, in vain
    assert points(store, run_id) == []
    assert "did not take step 0" in caplog.text
    tracker.log(1, {"reward": 2.0})  # the third try goes through, with both steps
    assert points(store, run_id) == [("reward", 0, 1.0), ("reward", 1, 2.0)]


def test_odd_names_many_params_long_values(store):
    tracker = opened(store)
    params = {f"p{i}": i for i in range(300)} | {"prompt": "x" * 10_000, "empty": "", "list": [1, 2]}
    run_id = tracker.start("run", params, {})
    tracker.log(0, {"timing(s)/gen": 1.0, "success@1": 2.0, "/a//b": 3.0, "n" * 300: 4.0, "..": 5.0})
    tracker.log(1, {f"m{i}": i for i in range(2100)})
    stored = dict(query(store, "SELECT key, value FROM params WHERE run_uuid = ?", run_id))
    assert len(stored) == 303
    assert (stored["empty"], stored["list"]) == ("", "[1, 2]")
    assert stored["prompt"] == "see artifact params/prompt.txt"
    (text,) = store.glob("mlartifacts/**/params/prompt.txt")
    assert text.read_text() == "x" * 10_000
    first = {name: value for name, step, value in points(store, run_id) if step == 0}
    assert {name: first[name] for name in ("timing_s_/gen", "success_1", "a/b", "_")} == {
        "timing_s_/gen": 1.0,
        "success_1": 2.0,
        "a/b": 3.0,
        "_": 5.0,
    }
    assert len(first) == 5
    assert len([1 for _, step, _ in points(store, run_id) if step == 1]) == 2100


def test_values_that_are_not_finite_are_said_and_not_drawn(store):
    tracker = opened(store)
    run_id = tracker.start("run", {}, {})
    tracker.log(0, {"kl": float("nan"), "ratio": float("inf"), "loss": 0.5})
    assert points(store, run_id) == [("loss", 0, 0.5), ("nonfinite/kl", 0, 1.0), ("nonfinite/ratio", 0, 1.0)]


def test_names_that_become_equal_both_stay():
    cleaned = clean_names({"a(b": 1, "a@b": 2, "a_b": 3})
    assert sorted(cleaned.values()) == [1, 2, 3]
    assert cleaned["a_b"] == 3


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("openai.api_key", "sk-1", "***"),
        ("hfToken", "hf_1", "***"),
        ("db.PASSWORD", 1234, "***"),
        ("client-secret", "s", "***"),
        ("policy.max_new_tokens", 48, "48"),
        ("train.tokens_per_microbatch", 8192, "8192"),
        ("api_key", "", ""),
        ("track.uri", "https://me:pw@host/x", "https://***@host/x"),
        ("flag", True, "true"),
    ],
)
def test_secrets_are_masked_by_words(name, value, text):
    assert mask(name, value) == text


def test_secrets_are_not_in_the_store(store):
    tracker = opened(store)
    tracker.start("run", {"server": {"api_key": "sk-hush"}}, {"hf_token": "hf-hush"})
    tracker.finish("FINISHED")
    assert b"hush" not in (store / "mlflow.db").read_bytes()


def test_flatten_joins_sections():
    assert dict(flatten({"a": {"b": {"c": 1}}, "d": 2})) == {"a.b.c": 1, "d": 2}


def test_an_unknown_run_is_started_anew_with_a_warning(store, caplog):
    tracker = opened(store)
    with caplog.at_level(logging.WARNING):
        run_id = tracker.start("run", {}, {}, "0" * 32)
    assert run_id != "0" * 32
    assert "has no run 00000000" in caplog.text


def test_a_deleted_run_is_started_anew_with_a_warning(store, caplog):
    from mlflow import MlflowClient

    run_id = opened(store).start("run", {}, {})
    MlflowClient(tracking_uri=sqlite_uri(store)).delete_run(run_id)
    with caplog.at_level(logging.WARNING):
        assert opened(store).start("run", {}, {}, run_id) != run_id
    assert "was deleted" in caplog.text


def test_a_parameter_that_changed_is_said(store, caplog):
    run_id = opened(store).start("run", {"env": {"processes": 2}}, {})
    with caplog.at_level(logging.WARNING):
        opened(store).start("run", {"env": {"processes": 4}}, {}, run_id)
    assert "env.processes = 2, and continues with 4" in caplog.text


def test_a_deleted_experiment_is_one_sentence(store):
    from mlflow import MlflowClient

    tracker = opened(store, experiment="gone")
    tracker.start("run", {}, {})
    client = MlflowClient(tracking_uri=sqlite_uri(store))
    experiment = client.get_experiment_by_name("gone")
    assert experiment
    client.delete_experiment(experiment.experiment_id)
    with pytest.raises(UsageError, match=r"'gone' \(track.experiment\) is deleted"):
        opened(store, experiment="gone").start("run", {}, {})


def test_artifacts_lie_beside_the_store(store):
    file = store / "config.toml"
    file.write_text("seed = 0\n")
    tracker = opened(store)
    run_id = tracker.start("run", {}, {})
    tracker.artifact(file)
    assert (store / "mlartifacts" / run_id / "artifacts" / "config.toml").read_text() == "seed = 0\n"
    with pytest.raises(FileNotFoundError):
        tracker.artifact(store / "absent")


@pytest.mark.parametrize("uri", ["file:///runs/mlruns", "mlruns"])
def test_folders_are_refused(uri):
    with pytest.raises(UsageError, match="no longer writes to folders"):
        open_tracker(TrackConfig(uri=uri), "").start("run", {}, {})


def test_a_store_that_cannot_be_used_is_one_sentence(tmp_path):
    (tmp_path / "mlflow.db").write_text("this is no database" * 100)
    with pytest.raises(RunFailed, match=r"cannot be used: .*track\.enabled=false") as error:
        opened(tmp_path).start("run", {}, {})
    assert "\n" not in str(error.value)


def test_where_the_address_comes_from(monkeypatch, tmp_path):
    default = sqlite_uri(tmp_path)
    assert default == f"sqlite:///{tmp_path}/mlflow.db"
    assert opened(tmp_path).uri == default
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert opened(tmp_path).uri == "http://127.0.0.1:5000"
    assert opened(tmp_path, uri="sqlite:///other.db").uri == "sqlite:///other.db"


def test_tracking_nothing():
    tracker = open_tracker(TrackConfig(enabled=False), "sqlite:////nowhere/at/all.db")
    assert isinstance(tracker, NullTracker)
    assert tracker.start("run", {}, {}, "kept") == "kept"
    tracker.log(0, {"a": 1.0})
    tracker.artifact(Path("absent"))
    tracker.finish("FINISHED")


def test_logging_without_a_start_is_a_mistake_of_the_caller(store):
    with pytest.raises(RuntimeError, match="not started"):
        opened(store).log(0, {})


def test_importing_the_tracker_imports_no_mlflow():
    code = "import sys, agentcredit.tracking; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONWARNINGS": "ignore"}).returncode == 0
