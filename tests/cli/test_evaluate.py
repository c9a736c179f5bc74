"""What ``agentcredit eval`` says of outcomes that are there already."""

import numpy as np
import pytest

from agentcredit.cli.evaluate import _lines, _record
from agentcredit.stats.intervals import PLUS_FOUR, bootstrap_mean, wilson
from tests.report.build import evaluation


def test_one_episode_per_task_has_wilsons_interval(tmp_path):
    record = _record(evaluation("grpo", "11100000"), tmp_path)
    interval = record["summary"]["interval"]
    assert (interval["low"], interval["high"], interval["kind"]) == (wilson(3, 8).low, wilson(3, 8).high, "wilson")
    assert {name: (s["k"], s["n"]) for name, s in record["by_type"].items()} == {"heat": (2, 4), "pick": (1, 4)}


def test_several_episodes_per_task_are_not_independent(tmp_path):
    """Four tasks of four episodes each, all alike within a task: 16 episodes know no more than 4 tasks."""
    of_tasks = evaluation("grpo", "1111111100000000", repeats=4)
    interval = _record(of_tasks, tmp_path)["summary"]["interval"]
    expected = bootstrap_mean(np.array([1.0, 1.0, 0.0, 0.0]), PLUS_FOUR)
    assert (interval["low"], interval["high"]) == (expected.low, expected.high)
    assert interval["high"] - interval["low"] > 1.3 * (wilson(8, 16).high - wilson(8, 16).low)
    line = next(line for line in _lines(of_tasks) if line.startswith("all"))
    assert f"{100 * expected.low:.1f}% – {100 * expected.high:.1f}%" in line


def test_nothing_counted_has_no_interval(tmp_path):
    failed = evaluation("grpo", "xx")
    assert _record(failed, tmp_path)["summary"]["interval"] is None
    assert any("nothing counted" in line for line in _lines(failed))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "temperature 0.4, 1 episode per task"),
        (
            {"temperature": 0.0, "own_temperature": False, "repeats": 2},
            "greedy (not the run's own), 2 episodes per task",
        ),
    ],
)
def test_the_decoding_is_said(changes, said):
    assert said in list(_lines(evaluation("grpo", "10", **changes)))
