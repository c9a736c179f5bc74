"""The reproducibility record: complete, and without secrets."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentcredit import repro
from agentcredit.config import RunConfig


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_a_repository_is_recorded_with_its_changes(tmp_path: Path):
    git(tmp_path, "init")
    assert repro.repository(tmp_path) == {}
    (tmp_path / "a.txt").write_text("one\n")
    git(tmp_path, "add", "a.txt")
    git(tmp_path, "commit", "-m", "a")
    clean = repro.repository(tmp_path)
    assert len(clean["commit"]) == 40
    assert (clean["dirty"], clean["diff"], clean["untracked"]) == (False, "", [])
    (tmp_path / "a.txt").write_text("two\n")
    (tmp_path / "b.txt").write_text("x\n")
    dirty = repro.repository(tmp_path)
    assert dirty["commit"] == clean["commit"]
    assert dirty["dirty"]
    assert "-one\n+two\n" in dirty["diff"]
    assert dirty["untracked"] == ["b.txt"]


def test_a_long_diff_is_cut_and_says_so(tmp_path: Path, monkeypatch):
    git(tmp_path, "init")
    (tmp_path / "a.txt").write_text("")
    git(tmp_path, "add", "a.txt")
    git(tmp_path, "commit", "-m", "a")
    (tmp_path / "a.txt").write_text("line\n" * 1000)
    monkeypatch.setattr(repro, "MAX_DIFF", 100)
    assert repro.repository(tmp_path)["diff"][100:].startswith("\n[cut: ")


def test_no_repository_and_no_git(tmp_path: Path, monkeypatch):
    assert repro.repository(tmp_path) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert repro.repository(Path(__file__).parent) == {}


def test_the_record_of_a_run():
    environ = {"AGENTCREDIT_SEED": "3", "AGENTCREDIT_API_TOKEN": "hunter2", "HOME": "/root", "OMP_NUM_THREADS": "1"}
    record = repro.collect(RunConfig(seed=3), ["/usr/bin/agentcredit", "train", "--seed", "3"], environ)
    assert record["command"] == "agentcredit train --seed 3"
    assert record["variables"] == {
        "AGENTCREDIT_API_TOKEN": "***",
        "AGENTCREDIT_SEED": "3",
        "OMP_NUM_THREADS": "1",
    }
    assert record["seeds"] == {"run": 3, "warm_start": 0}
    assert record["packages"]["pydantic"].startswith("2.")
    assert record["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("--set x.api_key=hunter2", "--set x.api_key=***"),
        ("--hub-token hunter2 --seed 1", "--hub-token *** --seed 1"),
        ("--set policy.max_new_tokens=48", "--set policy.max_new_tokens=48"),
        ("--set method.params.state_key=room", "--set method.params.state_key=room"),
        ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        ("sqlite:///runs/mlflow.db", "sqlite:///runs/mlflow.db"),
    ],
)
def test_secrets_are_masked_and_options_are_not(text: str, masked: str):
    assert repro.mask_text(text) == masked


def test_torch_is_not_imported_for_the_record():
    code = (
        "import sys; from agentcredit import repro; from agentcredit.config import RunConfig\n"
        "repro.collect(RunConfig()); assert repro.accelerator() == {}; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
