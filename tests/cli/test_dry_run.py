"""``train --dry-run``: what would be done, without doing it."""

import json
import tomllib
from pathlib import Path

from tests.cli.command import agentcredit, refused


def test_the_resolved_file_and_the_plan(tmp_path: Path):
    (tmp_path / "a.toml").write_text("[train]\nsteps = 10\neval_every = 4\n")
    result = agentcredit(
        "train",
        "--dry-run",
        "--method",
        "proas",
        "--base",
        "gigpo",
        "-c",
        "a.toml",
        "--set",
        "eval.repeats=2",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    resolved = tomllib.loads(result.stdout)
    assert resolved["method"]["name"] == "proas"
    assert resolved["train"]["steps"] == 10
    assert "steps = 10  # a.toml" in result.stdout
    assert 'base = "gigpo"  # --base' in result.stdout
    # 10 steps × 6 tasks × 8 siblings, 24 turns of 48 tokens each
    assert "# training   480 episodes, at most 552960 sampled tokens" in result.stdout
    # at the start, after 4 and 8, and at the end: 4 × 48 tasks × 2 repeats
    assert "# evaluation 384 episodes (at steps 0, 4, 8, 10), at most 442368 sampled tokens" in result.stdout
    assert "gigpo(" in result.stdout
    assert "proas(" in result.stdout
    assert not (tmp_path / "runs").exists()


def test_its_output_is_a_file_that_gives_the_same_run(tmp_path: Path):
    first = agentcredit("train", "--dry-run", "--method", "rloo", "--seed", 4, cwd=tmp_path)
    (tmp_path / "resolved.toml").write_text(first.stdout)
    again = agentcredit("train", "--dry-run", "--json", "-c", "resolved.toml", cwd=tmp_path)
    record = json.loads(again.stdout)
    assert record["run"] == f"runs/alfworld__rloo__tiny__s4__{record['fingerprint']}"
    assert record["run"] in first.stdout
    assert record["plan"]["episodes"] == 30 * 6 * 8
    assert record["missing"] == []
    assert not record["continues"]


def test_variables_count(tmp_path: Path):
    result = agentcredit("train", "--dry-run", "--json", cwd=tmp_path, AGENTCREDIT_ENV__NAME="scienceworld")
    record = json.loads(result.stdout)
    assert record["config"]["env"]["max_turns"] == 30
    assert record["origins"]["env.name"] == "AGENTCREDIT_ENV__NAME"


def test_what_training_brings_itself_is_said_and_no_error(tmp_path: Path):
    result = agentcredit("train", "--dry-run", cwd=tmp_path, AGENTCREDIT_ALFWORLD_PYTHON="")
    assert result.returncode == 0
    assert "# to come    The interpreter of alfworld: training makes it with pip (alfworld==" in result.stdout


def test_methods_that_make_no_sense_together_are_refused(tmp_path: Path):
    sentence = refused(agentcredit("train", "--dry-run", "--method", "ahead+rlsd", cwd=tmp_path), 2)
    assert "Methods 'ahead' and 'rlsd' do not go together: both hold an advantage within a band" in sentence


def test_what_is_missing_is_said_and_is_an_error(tmp_path: Path):
    result = agentcredit(
        "train", "--dry-run", "--model", "./none", "--set", "env.official=true", cwd=tmp_path, ALFWORLD_DATA="nowhere"
    )
    sentence = refused(result, 3)
    assert (
        "The official data of alfworld, expected in nowhere: set ALFWORLD_DATA, or run `agentcredit envs setup"
        in sentence
    )
    assert "The model ./none: there is no such folder with a config.json (policy.model)." in sentence
    assert tomllib.loads(result.stdout)["policy"]["model"] == "./none"
    assert result.stdout.count("# missing") == 2
