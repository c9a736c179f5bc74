"""Where graphs come from: the policy's successes or an expert's episodes; what is kept, what is forgotten."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agentcredit.envs.base import ExpertEpisode, ExpertStep, StepResult
from agentcredit.errors import UsageError
from agentcredit.methods.graph_sources import ExpertSource, GraphStore, SelfSource, episode_states, expert_steps
from agentcredit.methods.reference_graph import GOAL
from tests.methods.build import group, task, tools, walk


def store(**options):
    return GraphStore(**{"max_nodes": 100, "min_count": 1.0, **options})


def win(of=None, states=("a", "b", "end"), lifted=("r0", "r1", "r2")):
    return walk(states, True, of=of, lifted=lifted)


def lose(of=None, states=("a", "x", "y")):
    return walk(states, False, of=of)


def test_a_success_ends_in_the_goal_and_a_failure_where_it_ended():
    assert episode_states(win(), "instance") == ["a", "b", GOAL]
    assert episode_states(win(), "lifted") == ["r0", "r1", GOAL]
    assert episode_states(lose(), "instance") == ["a", "x", "y"]
    assert episode_states(walk(["a"], False), "instance") == []


def test_the_steps_own_successes_count_before_or_after_it():
    for order in ("before", "after"):
        source = SelfSource(store(), "success", order)
        groups = [group(win(), lose())]
        source.before(groups, tools())
        assert (source.graph(task(), "instance") is not None) == (order == "before")
        source.after(groups, tools())
        graph = source.graph(task(), "instance")
        assert graph is not None
        assert graph.edges() == {("a", "b"), ("b", GOAL)}


def test_edge_scope_all_adds_what_failures_saw():
    source = SelfSource(store(), "all", "before")
    source.before([group(win(), lose())], tools())
    assert source.graph(task(), "instance").edges() == {("a", "b"), ("b", GOAL), ("a", "x"), ("x", "y")}


def test_failures_alone_give_no_graph():
    source = SelfSource(store(), "all", "before")
    source.before([group(lose())], tools())
    assert source.graph(task(), "instance") is None


def test_the_lifted_graph_is_shared_by_a_type_and_the_instance_graph_is_not():
    source = SelfSource(store(), "success", "before")
    source.before([group(win(task("t0", "fetch")))], tools())
    other, foreign = task("t1", "fetch"), task("t2", "heat")
    assert source.graph(other, "instance") is None
    assert source.graph(other, "lifted").edges() == {("r0", "r1"), ("r1", GOAL)}
    assert source.graph(foreign, "lifted") is None
    assert source.graph(replace(task("t0"), split="test"), "instance") is None


def test_old_graphs_are_forgotten_beyond_the_bound():
    kept = store(max_graphs=2)
    for i in range(3):
        kept.insert(task(f"t{i}"), {"instance": [("a", "go", GOAL)]})
    assert [kept.get(task(f"t{i}"), "instance") is not None for i in range(3)] == [False, True, True]


def test_decay_acts_once_per_step():
    source = SelfSource(store(min_count=0.5, decay=0.6), "success", "before")
    source.before([group(win())], tools())
    source.before([group(lose())], tools())  # 0.6
    assert source.graph(task(), "instance") is not None
    source.before([group(lose())], tools())  # 0.36
    assert source.graph(task(), "instance") is None


def expert(task_id: str) -> ExpertEpisode | None:
    """Goes a → <task> → end; knows nothing of t9, and fails t8."""
    if task_id == "t9":
        return None
    results = [
        StepResult("", state_key="a", lifted_key="r0"),
        StepResult("", state_key=task_id, lifted_key="r1"),
        StepResult("", state_key="end", lifted_key="r2", done=True, success=task_id != "t8"),
    ]
    return ExpertEpisode(task_id, [ExpertStep("first", "go"), ExpertStep("then", "take")], results)


def test_expert_steps_end_in_the_goal():
    assert expert_steps(expert("t0"), "instance") == [("a", "go", "t0"), ("t0", "take", GOAL)]
    assert expert_steps(expert("t0"), "lifted") == [("r0", "go", "r1"), ("r1", "take", GOAL)]


def test_an_oracle_shows_every_task_once():
    asked = []

    def ask(task_id):
        asked.append(task_id)
        return expert(task_id)

    source = ExpertSource(store())
    groups = [group(lose(task(t))) for t in ("t0", "t8", "t9")]
    for _ in range(2):
        source.before(groups, tools(expert=ask))
    assert asked == ["t0", "t8", "t9"]
    assert source.graph(task("t0"), "instance").edges() == {("a", "t0"), ("t0", GOAL)}
    assert source.graph(task("t8"), "instance") is None  # an expert that failed shows no way
    assert source.graph(task("t9"), "instance") is None
    assert source.graph(task("t9"), "lifted") is not None  # but the type's ways are known


def test_demonstrations_are_given_for_the_first_tasks_of_a_type():
    source = ExpertSource(store(), per_type=1)
    source.before([group(lose(task(t))) for t in ("t8", "t0", "t1")], tools(expert=expert))
    assert source.graph(task("t0"), "instance") is not None
    assert source.graph(task("t1"), "instance") is None
    assert source.graph(task("t1"), "lifted") is not None


def test_an_expert_learns_nothing_from_the_policy():
    source = ExpertSource(store())
    source.before([group(win(task("t9")))], tools(expert=expert))
    source.after([group(win(task("t9")))], tools(expert=expert))
    assert source.graph(task("t9"), "instance") is None


def test_no_expert_is_said_clearly():
    with pytest.raises(UsageError, match=r"no expert.*source=self"):
        ExpertSource(store()).before([group(win())], tools())


@pytest.mark.parametrize("make", [lambda: SelfSource(store(), "all", "before"), lambda: ExpertSource(store(), 1)])
def test_state_survives_json(make):
    groups = [group(win(task("t0")), lose(task("t0"))), group(win(task("t1", "heat"), ["a", "c", "end"]))]
    source, restored = make(), make()
    source.before(groups, tools(expert=expert))
    restored.load_state_dict(json.loads(json.dumps(source.state_dict())))
    assert restored.state_dict() == source.state_dict()
    for level in ("instance", "lifted"):
        before, after = source.graph(task("t0"), level), restored.graph(task("t0"), level)
        assert after.goal_distances() == before.goal_distances()

    def must_not_ask(task_id):
        raise AssertionError(f"asked again about {task_id}")

    restored.before(groups, tools(expert=must_not_ask))
