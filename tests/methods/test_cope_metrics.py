"""Whether CoPE's targets drift to doing nothing: shares and the split of tasks, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcredit.episodes import Episode, StopReason
from agentcredit.methods.cope import CopeParams
from agentcredit.methods.cope_metrics import ends, idle_split, target_metrics
from agentcredit.methods.forecasts import forecasts_of
from tests.methods.build import group, walk


def lost(*states: str, reason: StopReason) -> Episode:
    return replace(walk(list(states), False), stop_reason=reason)


def test_no_ops_and_endings_in_targets_and_in_rollouts():
    # Targets: the success's two actions, one of which does nothing and one of which ends it. Rollouts: those, three of an
    # episode that its budget ended, and one action that ended its episode in failure.
    groups = [
        group(walk(["A", "A", "G"], True), lost("A", "B", "C", "B", reason=StopReason.MAX_TURNS)),
        group(lost("A", "B", reason=StopReason.FAILURE)),
    ]
    metrics = target_metrics(forecasts_of(groups, CopeParams()), groups)
    assert metrics["cope/target_noop_share"] == 1 / 2
    assert metrics["cope/rollout_noop_share"] == 1 / 6
    assert metrics["cope/target_end_share"] == 1 / 2
    assert metrics["cope/rollout_end_share"] == 2 / 6


@pytest.mark.parametrize("reason", list(StopReason))
def test_only_the_agent_ends_an_episode_by_its_action(reason: StopReason):
    episode = lost("A", "B", "C", reason=reason)
    assert not ends(episode, 0)
    assert ends(episode, 1) == (reason in (StopReason.SUCCESS, StopReason.FAILURE))


def test_without_a_target_there_are_no_shares():
    groups = [group(lost("A", "B", reason=StopReason.FAILURE))]
    assert not any("share" in name for name in target_metrics([], groups) if name != "cope/all_success_share")
    assert target_metrics([], []) == {}


def test_success_by_whether_a_task_needs_a_change():
    # Idle: a success that looked around and came back to A. Change: two successes that ended elsewhere, and a task that
    # nobody solved; that a *failure* ended where it began says nothing.
    groups = [
        group(walk(["A", "B", "A"], True), walk(["A", "B"], False)),
        group(walk(["A", "G"], True), walk(["A", "B", "G"], True), walk(["A", "B", "A"], False)),
        group(walk(["A", "A"], False)),
    ]
    assert idle_split(groups) == {
        "cope/idle_task_share": pytest.approx(1 / 3),
        "cope/success_idle_tasks": 1 / 2,
        "cope/success_change_tasks": 2 / 4,
    }


def test_a_task_that_nobody_solved_counts_as_one_that_needs_a_change():
    unsolved = group(walk(["A", "B", "A"], False), walk(["A", "A"], False))
    assert idle_split([unsolved]) == {"cope/idle_task_share": 0.0, "cope/success_change_tasks": 0.0}


def test_tasks_without_state_keys_are_left_out():
    unknown = group(walk([None, None], True))
    assert idle_split([unknown]) == {}
    known = group(walk(["A", "G"], True))
    assert idle_split([unknown, known]) == {"cope/idle_task_share": 0.0, "cope/success_change_tasks": 1.0}
