"""The check, on the toy environment in real workers: what is as declared passes, and each fault is found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agentcredit.config import EnvConfig
from agentcredit.envs import registry
from agentcredit.envs.check import Report, check
from agentcredit.envs.registry import EnvEntry
from tests.envs.corridor import TOY


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of the toy environment that is registered as `toy`; a test may add to them."""
    chosen: dict[str, Any] = {}
    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path))
    monkeypatch.setenv("AGENTCREDIT_TOY_PYTHON", sys.executable)
    monkeypatch.setattr(registry, "_BUILT_IN", (EnvEntry("toy", "a corridor", f"{TOY}:make", ()),))
    monkeypatch.setattr(registry, "options_for", lambda env: chosen)
    return chosen


def run(**arguments: Any) -> Report:
    return check(EnvConfig(name="toy", processes=2), **arguments)


def test_all_is_well(options: dict[str, Any]) -> None:
    said: list[str] = []
    report = run(episodes=5, say=said.append)
    assert report.problems == []
    assert [(split.split, split.role, split.tasks, split.committed) for split in report.splits] == [
        ("train", "train", 6, False),
        ("dev", "dev", 3, False),
    ]
    assert {expert.split for expert in report.experts} == {"train", "dev"}
    assert len(report.experts) == 5
    assert {expert.type for expert in report.experts} == {"key", "far key"}
    assert all(expert.success and expert.score == 1.0 for expert in report.experts)
    found = report.determinism
    assert (found.declared, found.found, found.workers, found.episodes, found.difference) == (True, True, 2, 5, "")
    assert found.steps == sum(expert.steps for expert in report.experts)
    assert report.speed.cached_equal is True
    assert report.speed.cache_hit_rate == 1.0
    assert report.speed.steps_per_second_cached > report.speed.steps_per_second > 0  # pyright: ignore[reportOptionalOperand]
    assert said[0] == "toy: toy 1.0, toy"
    plain = json.loads(json.dumps(report.plain()))
    assert (plain["expert_successes"], plain["expert_episodes"]) == (5, 5)


def test_types_narrow_what_is_played(options: dict[str, Any]) -> None:
    report = run(episodes=4, workers=1, types=("far key",))
    assert {expert.type for expert in report.experts} == {"far key"}
    assert [split.tasks for split in report.splits] == [6, 3]


def test_a_declaration_that_does_not_hold_is_found(options: dict[str, Any]) -> None:
    options["random"] = True
    report = run(episodes=2, workers=1)
    assert not report.determinism.found
    assert report.determinism.difference.startswith(f"{report.experts[0].task_id}: action 1 (")
    assert report.determinism.difference.endswith(") gave another observation")
    assert any("declared deterministic and is not" in problem for problem in report.problems)


def test_an_environment_that_declares_itself_random_is_not_blamed(options: dict[str, Any]) -> None:
    options |= {"random": True, "deterministic": False}
    report = run(episodes=2, workers=1)
    assert (report.determinism.declared, report.determinism.found) == (False, False)
    assert report.problems == []
    assert report.speed.steps_per_second_cached is None


WEAK = """
import importlib.util
spec = importlib.util.spec_from_file_location("toy", {toy!r})
toy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toy)

class Weak(toy.Corridor):
    def expert(self, task_id):
        return None if task_id == "dev/0" else super().expert(task_id)

def make(options):
    return Weak(options)
"""


def test_a_task_without_a_way_is_named(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weak.py").write_text(WEAK.format(toy=str(TOY)))
    monkeypatch.setattr(registry, "_BUILT_IN", (EnvEntry("toy", "", f"{tmp_path / 'weak.py'}:make", ()),))
    report = run(episodes=9, workers=1)
    assert [expert.task_id for expert in report.experts if not expert.success] == ["dev/0"]
    assert report.problems == [f"The expert does not solve 1 of {len(report.experts)} tasks: dev/0."]
