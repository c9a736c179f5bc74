from __future__ import annotations

from pathlib import Path

from tests.cli.command import agentcredit, refused


def test_dry_run_prints_every_command_of_the_comparison(tmp_path: Path):
    result = agentcredit("compare", "--methods", "grpo,proas/gigpo", "--seeds", "2", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    trains = [line for line in lines if " train -c " in line]
    assert len(trains) == 4
    assert [("proas-gigpo" in line, "__s1__" in line) for line in trains] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ]
    # Four last weights, and the start's once per seed.
    assert sum(" eval " in line for line in lines) == 4 + 2
    assert sum("--checkpoint -1" in line for line in lines) == 2


def test_a_comparison_without_methods_is_refused(tmp_path: Path):
    assert "--methods" in refused(agentcredit("compare", cwd=tmp_path), 2)


def test_the_same_run_twice_is_refused(tmp_path: Path):
    sentence = refused(agentcredit("compare", "--methods", "grpo,grpo", cwd=tmp_path), 2)
    assert "same run twice" in sentence


def test_an_unknown_method_is_named_before_anything_is_trained(tmp_path: Path):
    sentence = refused(agentcredit("compare", "--methods", "grpo,proaz", cwd=tmp_path), 2)
    assert "proaz" in sentence
    assert "proas" in sentence
    assert not (tmp_path / "runs").exists()
