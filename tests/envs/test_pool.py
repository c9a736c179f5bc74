from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from agentcredit.envs.base import EnvFailure, StepResult
from agentcredit.errors import MissingError
from tests.envs.corridor import TASKS, corridor, play, play_together, random_plans

PLAN = ["left", "left", "take", "right", "right", "right", "right", "open"]


@pytest.fixture(scope="module")
def undisturbed() -> list[list[StepResult]]:
    """Twelve random episodes, each played alone in one process that nothing happens to."""
    with corridor(processes=1, instances=1) as client:
        return [play(client, TASKS[n % 6], plan) for n, plan in enumerate(random_plans(12, 10))]


def test_the_corridor_is_won_by_its_plan() -> None:
    with corridor(processes=1) as client:
        results = play(client, "train/2", PLAN)
    assert [result.reward for result in results] == [0.0] * 8 + [1.0]
    assert results[-1].done
    assert results[-1].success


def test_episodes_side_by_side_are_as_alone(undisturbed: list[list[StepResult]]) -> None:
    with corridor(per_process=6) as client:
        assert play_together(client, [TASKS[n % 6] for n in range(12)], random_plans(12, 10)) == undisturbed
        assert client.stats()["resets_replayed"] == 0  # every episode has kept its own object


@pytest.mark.parametrize("processes", [1, 2])
def test_slots_that_are_taken_over_give_the_same_results(undisturbed: list[list[StepResult]], processes: int) -> None:
    with corridor(processes=processes, instances=2) as client:
        results = play_together(client, [TASKS[n % 6] for n in range(12)], random_plans(12, 10))
        assert client.capacity == 2
        stats = client.stats()
    assert results == undisturbed
    assert stats["steps_simulated"] == 120
    assert stats["resets_replayed"] >= 100  # twelve episodes in lockstep over two slots


@pytest.mark.parametrize(
    ("fault", "counter"), [("die", "deaths"), ("garbage", "deaths"), ("hang", "timeouts"), ("raise", "exceptions")]
)
def test_a_fault_in_the_middle_changes_no_result(
    undisturbed: list[list[StepResult]], tmp_path: Path, fault: str, counter: str
) -> None:
    with corridor(faults=str(tmp_path), call_timeout=1.5, per_process=6) as client:
        episodes = [client.open(TASKS[n % 6]) for n in range(12)]
        results = [[episode.reset().result(30)] for episode in episodes]
        for turn, actions in enumerate(zip(*random_plans(12, 10), strict=True)):
            if turn == 4:
                (tmp_path / fault).touch()
            futures = [episode.step(action) for episode, action in zip(episodes, actions, strict=True)]
            for row, future in zip(results, futures, strict=True):
                row.append(future.result(30))
        stats = client.stats()
    assert not (tmp_path / fault).exists()
    assert results == undisturbed
    assert stats[counter] == 1
    assert stats["restarts"] == (0 if fault == "raise" else 1)
    assert stats["steps"] == stats["steps_simulated"] == 120
    assert stats["failures"] == 0
    # Two processes of six objects: who was in the lost worker is played again, or who was in the lost object.
    assert stats["resets_replayed"] == (1 if fault == "raise" else 6)


@pytest.mark.parametrize(
    ("action", "kind", "text"),
    [
        ("die!", "env_error", "died in step (exit code 9)"),
        ("garbage!", "env_error", "printed garbage on its pipe in step: b'!! not json'"),
        ("hang!", "env_timeout", "did not answer step within 0.5 s"),
        ("raise!", "env_error", "RuntimeError: the floor gave way"),
    ],
)
def test_retries_are_bounded_and_the_cause_is_told(tmp_path: Path, action: str, kind: str, text: str) -> None:
    log = tmp_path / "workers.log"
    with corridor(processes=1, call_timeout=0.5, retries=1, log_path=log) as client:
        episode = client.open("train/0")
        episode.reset().result(10)
        with pytest.raises(EnvFailure) as caught:
            episode.step(action).result(30)
        message, detail = str(caught.value), caught.value.detail
        assert caught.value.kind == kind
        assert text in message
        assert "(tried 2 times)" in message
        assert str(log) in message
        assert ("Traceback" in detail and "_fault" in detail) if action == "raise!" else ("about to" in detail)
        assert detail.strip() in message
        # The failure was the step's: the episode and the pool go on.
        assert episode.step("right").result(30).observation == "You are at place 1. Step 1, seed 0."
        assert client.stats()["failures"] == 1
    assert f"[toy-0] about to {action[:-1]}" in log.read_text()


def test_no_retry_when_none_is_allowed() -> None:
    with corridor(processes=1, retries=0) as client:
        episode = client.open("train/0")
        episode.reset().result(10)
        with pytest.raises(EnvFailure):
            episode.step("die!").result(10)
        assert client.stats()["deaths"] == 1


def test_an_environment_that_cannot_start_says_why() -> None:
    with pytest.raises(MissingError, match="ValueError: this corridor has no walls"), corridor(broken=True):
        pass


def test_a_replay_that_differs_is_found_out() -> None:
    with corridor(processes=1, instances=1, random=True) as client:
        first, second = client.open("train/0"), client.open("train/0")
        first.reset().result(10)
        first.step("right").result(10)
        second.reset().result(10)  # takes the only slot
        with pytest.raises(EnvFailure, match="not deterministic as it declares"):
            first.step("right").result(10)


class TestNotDeterministic:
    def test_a_lost_worker_fails_its_episodes_at_once(self) -> None:
        with corridor(processes=1, instances=2, deterministic=False, random=True) as client:
            first, second = client.open("train/0"), client.open("train/1")
            first.reset().result(10)
            second.reset().result(10)
            with pytest.raises(EnvFailure, match="died in step"):
                first.step("die!").result(10)
            with pytest.raises(EnvFailure, match="the worker that played it was lost"):
                second.step("left").result(10)
            assert client.stats()["deaths"] == 1
            first.close()
            second.close()
            assert play(client, "train/0", ["left"])[0].observation.startswith("You are at place 0")

    def test_a_fault_in_the_reset_is_retried(self, tmp_path: Path) -> None:
        with corridor(processes=1, instances=1, deterministic=False, faults=str(tmp_path)) as client:
            episode = client.open("train/0")
            (tmp_path / "die").touch()
            episode.reset().result(10)
            with pytest.raises(EnvFailure):
                episode.step("left").result(10)

    def test_a_slot_is_not_taken_over(self) -> None:
        with corridor(processes=1, instances=1, deterministic=False) as client:
            first, second = client.open("train/0"), client.open("train/1")
            first.reset().result(10)
            with pytest.raises(RuntimeError, match=r"at most 1 episodes .* close one before another begins"):
                second.reset()
            assert first.step("right").result(10).observation == "You are at place 1. Step 1, seed 0."
            assert first.reset().result(10).observation == "You are at place 0."  # the same episode again
            first.close()
            assert second.reset().result(10).observation == "You are at place 1."


def test_two_pools_at_the_same_time() -> None:
    plans = random_plans(12, 8, seed=3)
    tasks = [TASKS[n % 6] for n in range(12)]
    outcome: dict[int, list[list[StepResult]]] = {}

    def run(number: int) -> None:
        with corridor(processes=2, instances=3) as client:
            outcome[number] = play_together(client, tasks, plans)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcome[0] == outcome[1]


def test_many_threads_may_ask_one_client() -> None:
    plans = random_plans(8, 12, seed=5)
    outcome: dict[int, list[StepResult]] = {}
    with corridor(processes=2, instances=3) as client:
        threads = [
            threading.Thread(target=lambda n=n: outcome.update({n: play(client, TASKS[n % 6], plans[n])}))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [outcome[n] for n in range(8)] == [play(client, TASKS[n % 6], plans[n]) for n in range(8)]


def test_closing_breaks_off_what_is_under_way_and_cancels_what_waits() -> None:
    with corridor(processes=1, instances=1) as client:
        first, second = client.open("train/0"), client.open("train/1")
        first.reset().result(10)
        hanging, waiting = first.step("hang!"), second.reset()
        time.sleep(0.3)
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < 5
        with pytest.raises(EnvFailure, match="closed"):
            hanging.result(0)
        with pytest.raises(CancelledError):
            waiting.result(0)
        client.close()
        with pytest.raises(RuntimeError, match="the pool is closed"):
            second.reset()


def test_an_episode_closed_during_its_call_gives_its_slot_back() -> None:
    with corridor(processes=1, instances=1, deterministic=False) as client:
        first, second = client.open("train/0"), client.open("train/1")
        first.reset().result(10)
        slow = first.step("sleep!")
        first.close()
        first.close()
        assert second.reset().result(10).observation == "You are at place 1."
        assert slow.done()


def test_no_more_objects_are_made_than_allowed(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with corridor(processes=2, instances=3, journal=str(journal)) as client:
        play_together(client, [TASKS[n % 6] for n in range(9)], random_plans(9, 4))
    objects = {tuple(line.split()[:2]) for line in journal.read_text().splitlines()}
    processes = {process for process, _ in objects}
    assert len(objects) == 3
    assert len(processes) == 2


def test_a_freed_object_serves_the_next_episode(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with corridor(processes=1, instances=3, journal=str(journal)) as client:
        for task in TASKS:
            play(client, task, ["left"])
    assert len({line.split()[1] for line in journal.read_text().splitlines()}) == 1
