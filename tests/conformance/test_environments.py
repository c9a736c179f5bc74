"""What every environment must do, asked of each in its own worker: the toy's and every registered one's."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from agentcredit.config import EnvConfig
from agentcredit.envs import registry
from agentcredit.envs.base import EnvFailure, StepResult, TaskInfo
from agentcredit.envs.client import PoolClient
from agentcredit.errors import MissingError, UsageError
from tests.envs.corridor import corridor, play

Connect = Callable[[], PoolClient]


def _cases() -> list[object]:
    marked = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("alfworld", "scienceworld")]
    others = [name for name in registry.names() if name not in ("alfworld", "scienceworld")]
    return ["toy", "toy (markov)", *marked, *others]


@pytest.fixture(scope="module", params=_cases())
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of one environment that simulate everything; each call has workers of its own."""
    with ExitStack() as stack:

        def connect() -> PoolClient:
            if request.param.startswith("toy"):
                return stack.enter_context(corridor(markov="markov" in request.param))
            try:
                client = registry.connect(EnvConfig(name=request.param, processes=1, cache=False, retries=0))
            except MissingError as missing:
                pytest.skip(str(missing))
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture(scope="module")
def client(connect: Connect) -> PoolClient:
    return connect()


@pytest.fixture(scope="module")
def fresh(connect: Connect) -> PoolClient:
    """The same environment in another process."""
    return connect()


def split_of(client: PoolClient) -> str:
    """The split with the fewest tasks."""
    splits = client.spec().splits
    return min(splits, key=lambda split: (splits[split], split))


def some_tasks(client: PoolClient, n: int) -> list[TaskInfo]:
    """A few tasks from all over the split."""
    tasks = client.tasks(split_of(client))
    return tasks[:: max(len(tasks) // n, 1)][:n]


def an_action(result: StepResult, rng: random.Random, fallback: Sequence[str]) -> str:
    return rng.choice(result.admissible or list(fallback))


def walk(
    client: PoolClient, task: TaskInfo, length: int, fallback: Sequence[str]
) -> tuple[list[str], list[StepResult]]:
    rng = random.Random(task.id)
    episode = client.open(task.id)
    actions, results = [], [episode.reset().result(120)]
    while len(actions) < length and not results[-1].done:
        actions.append(an_action(results[-1], rng, fallback))
        results.append(episode.step(actions[-1]).result(120))
    episode.close()
    return actions, results


@pytest.fixture(scope="module")
def known_actions(client: PoolClient) -> list[str]:
    """Actions that the environment's expert uses, for environments that cannot list what is admissible."""
    (episode,) = client.experts([some_tasks(client, 1)[0].id])
    return [step.action for step in episode.steps] if episode is not None else ["look around"]


def test_the_spec_is_complete(client: PoolClient) -> None:
    spec = client.spec()
    assert spec.name
    assert spec.version
    assert re.search(r"\d", spec.package), "the package is named with its version"
    assert spec.default_max_turns > 0
    assert spec.default_layout in ("dialogue", "window")
    assert spec.instructions.strip()
    assert spec.success_rule.strip()
    assert spec.data_source.strip()
    assert spec.instances_per_process >= 1
    assert spec.splits
    assert all(count > 0 for count in spec.splits.values())
    assert not spec.markov or spec.deterministic


def test_tasks_are_sorted_unique_counted_and_stable(client: PoolClient, fresh: PoolClient) -> None:
    split = split_of(client)
    tasks = client.tasks(split)
    ids = [task.id for task in tasks]
    assert len(ids) == client.spec().splits[split]
    assert ids == sorted(set(ids))
    assert all(re.fullmatch(r"[0-9a-f]{16}", task.content_hash) for task in tasks)
    known = client.spec().task_types
    assert all(task.type in known for task in tasks) if known else True
    assert fresh.tasks(split) == tasks


def test_what_is_not_known_is_refused(client: PoolClient) -> None:
    with pytest.raises(UsageError):
        client.tasks("no such split")
    with pytest.raises(UsageError):
        client.open("no such task").reset().result(120)
    task = some_tasks(client, 1)[0]
    assert client.open(task.id).reset().result(120).observation


def test_results_make_sense(client: PoolClient, known_actions: list[str]) -> None:
    for task in some_tasks(client, 3):
        _, results = walk(client, task, 8, known_actions)
        assert results[0].reward == 0
        assert not results[0].done
        assert not results[0].success
        for result in results:
            assert isinstance(result.observation, str)
            assert result.observation.strip()
            assert result.admissible is None or result.admissible == sorted(set(result.admissible))
            assert result.done or not result.success
            assert not client.spec().markov or result.full_state
        # The score starts from the reset's, and a reward is its change; a failure may cost more than there was.
        total = 0.0
        for result in results:
            total += result.reward
            assert total == pytest.approx(result.score, abs=1e-9) or result.score == 0


def test_the_same_actions_give_the_same_results(
    client: PoolClient, fresh: PoolClient, known_actions: list[str]
) -> None:
    if not client.spec().deterministic:
        pytest.skip("declared as not deterministic")
    for task in some_tasks(client, 2):
        actions, results = walk(client, task, 10, known_actions)
        assert play(fresh, task.id, actions) == results


def test_an_admissible_action_is_valid(client: PoolClient, known_actions: list[str]) -> None:
    for task in some_tasks(client, 2):
        _, results = walk(client, task, 6, known_actions)
        if results[0].admissible is None:
            pytest.skip("admissible actions are not listed")
        assert all(result.valid for result in results)


@pytest.mark.parametrize("action", ["", "   ", "xyzzy", "open", 'go to "nowhere"\n; drop \x00', "é" * 300, "0"])
def test_nonsense_is_answered(client: PoolClient, action: str) -> None:
    task = some_tasks(client, 1)[0]
    episode = client.open(task.id)
    before = episode.reset().result(120)
    result = episode.step(action).result(120)
    if action == "xyzzy":
        assert not result.valid
        assert result.reward == 0
        assert not result.done
    again = episode.step(an_action(before, random.Random(0), ["look around"])).result(120)
    assert again.observation
    episode.close()
    assert client.stats()["failures"] == 0


def test_an_expert_succeeds_and_its_results_are_the_environments(client: PoolClient) -> None:
    tasks = some_tasks(client, 2)
    for task, expert in zip(tasks, client.experts([task.id for task in tasks]), strict=True):
        if expert is None:
            continue
        assert expert.task_id == task.id
        assert len(expert.results) == len(expert.steps) + 1
        assert expert.results[-1].success
        assert all(step.action for step in expert.steps)
        if client.spec().deterministic:
            assert play(client, task.id, [step.action for step in expert.steps]) == expert.results


def test_episodes_side_by_side_do_not_touch(client: PoolClient, known_actions: list[str]) -> None:
    if client.capacity < 2 or not client.spec().deterministic:
        pytest.skip("one episode at a time, or declared as not deterministic")
    first, second = some_tasks(client, 2)
    alone = {task.id: walk(client, task, 5, known_actions) for task in (first, second)}
    episodes = [client.open(task.id) for task in (first, second)]
    results = [[episode.reset().result(120)] for episode in episodes]
    for turn in range(5):
        for n, task in enumerate((first, second)):
            actions = alone[task.id][0]
            if turn < len(actions):
                results[n].append(episodes[n].step(actions[turn]).result(120))
    for episode in episodes:
        episode.close()
    assert results == [alone[task.id][1] for task in (first, second)]


def test_an_object_serves_task_after_task(client: PoolClient, known_actions: list[str]) -> None:
    if not client.spec().deterministic:
        pytest.skip("declared as not deterministic")
    first, second = some_tasks(client, 2)
    before = walk(client, first, 4, known_actions)
    walk(client, second, 4, known_actions)
    assert walk(client, first, 4, known_actions) == before


def test_closing_twice_is_fine(connect: Connect) -> None:
    client = connect()
    episode = client.open(some_tasks(client, 1)[0].id)
    episode.reset().result(120)
    episode.close()
    episode.close()
    client.close()
    client.close()
    with pytest.raises((RuntimeError, EnvFailure)):
        episode.step("look").result(10)
