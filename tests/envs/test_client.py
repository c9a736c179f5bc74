from __future__ import annotations

import multiprocessing
from concurrent.futures import wait
from pathlib import Path

import pytest

from agentcredit.envs.base import StepResult
from agentcredit.errors import UsageError
from tests.envs.corridor import TASKS, corridor, play, play_together, random_plans

PLANS = random_plans(18, 12, seed=7)
PLAYED = [TASKS[n % 6] for n in range(18)]


@pytest.fixture(params=[False, True], ids=["history", "markov"])
def markov(request: pytest.FixtureRequest) -> bool:
    return request.param


def played_plainly(markov: bool) -> list[list[StepResult]]:
    with corridor(markov=markov, per_process=9) as client:
        return play_together(client, PLAYED, PLANS)


def test_the_cache_never_changes_a_result(tmp_path: Path, markov: bool) -> None:
    plain = played_plainly(markov)
    path = tmp_path / "cache.sqlite"
    with corridor(markov=markov, store=path) as client:
        first = play_together(client, PLAYED, PLANS)
        cold = client.stats()
        second = play_together(client, PLAYED, PLANS)
        assert client.stats()["steps_simulated"] == cold["steps_simulated"]
    with corridor(markov=markov, store=path) as client:
        third = play_together(client, PLAYED, PLANS)
        warm = client.stats()
    assert plain == first == second == third
    assert cold["resets_simulated"] == 6  # one for each task, though three episodes ask at once
    assert cold["steps_simulated"] < 18 * 12
    assert warm["resets_simulated"] == warm["steps_simulated"] == warm["steps_replayed"] == 0
    assert warm["cache_hit_rate"] == 1.0
    assert warm["cache_hits"] == 18 * 13


def test_results_are_the_same_when_most_is_known_but_not_all(tmp_path: Path, markov: bool) -> None:
    path = tmp_path / "cache.sqlite"
    with corridor(markov=markov, store=path) as client:
        for task, plan in zip(PLAYED, PLANS, strict=True):
            play(client, task, plan[:9])
    with corridor(markov=markov, store=path, instances=2) as client:
        results = play_together(client, PLAYED, PLANS)
        stats = client.stats()
    assert results == played_plainly(markov)
    assert stats["steps_replayed"] > 0  # the first step that is not known has to be reached


def test_a_full_state_shares_more_than_a_history(tmp_path: Path) -> None:
    simulated = {}
    for kind in (False, True):
        with corridor(markov=kind, store=tmp_path / f"{kind}.sqlite") as client:
            play_together(client, PLAYED, PLANS)
            simulated[kind] = client.stats()["steps_simulated"]
    # Twenty states and five actions a task at most, however long the walks.
    assert simulated[True] <= 6 * 100
    assert simulated[True] < simulated[False] / 2


def test_the_same_question_under_way_is_asked_once(tmp_path: Path) -> None:
    with corridor(processes=2, store=tmp_path / "c.sqlite") as client:
        episodes = [client.open("train/3") for _ in range(8)]
        for action in (None, "sleep!"):
            futures = [episode.reset() if action is None else episode.step(action) for episode in episodes]
            results = [future.result(20) for future in futures]
            assert all(result == results[0] for result in results)
        stats = client.stats()
    assert stats["resets_simulated"] == stats["steps_simulated"] == 1
    assert stats["cache_misses"] == 2
    assert stats["cache_shared"] + stats["cache_hits"] == 14  # a quick answer may land before the last has asked


def test_a_failure_is_not_remembered(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    with corridor(processes=1, retries=0, store=tmp_path / "c.sqlite", faults=str(faults)) as client:
        episode = client.open("train/0")
        episode.reset().result(10)
        (faults / "die").touch()
        failed = episode.step("right")
        assert failed.exception(10) is not None
        assert episode.step("right").result(10).observation == "You are at place 1. Step 1, seed 0."


def test_a_task_of_unknown_content_is_played_and_not_remembered(tmp_path: Path) -> None:
    with corridor(store=tmp_path / "c.sqlite") as client:  # lists the training split alone
        assert play(client, "dev/1", ["left"]) == play(client, "dev/1", ["left"])
        assert client.stats()["cache_hits"] == 0
        client.tasks("dev")
        play(client, "dev/1", ["left"])
        play(client, "dev/1", ["left"])
        assert client.stats()["cache_hits"] == 2


def test_a_seed_is_a_part_of_the_question(tmp_path: Path) -> None:
    with corridor(store=tmp_path / "c.sqlite") as client:
        assert [play(client, "train/0", ["left"], seed)[-1].observation for seed in (0, 1, 0)] == [
            "Nothing happens. Step 1, seed 0.",
            "Nothing happens. Step 1, seed 1.",
            "Nothing happens. Step 1, seed 0.",
        ]


def test_an_environment_that_is_not_deterministic_is_not_cached(tmp_path: Path) -> None:
    with corridor(store=tmp_path / "c.sqlite", deterministic=False, random=True) as client:
        assert play(client, "train/0", ["left"]) != play(client, "train/0", ["left"])
    assert not (tmp_path / "c.sqlite").exists()


def test_experts_are_computed_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    with corridor(store=path) as client:
        episodes = client.experts(["train/2", "train/0", "train/2"])
        assert client.stats()["experts_simulated"] == 2
        assert [len(episode.steps) for episode in episodes if episode] == [8, 6, 8]
        for episode in episodes:
            assert episode is not None
            assert play(client, episode.task_id, [step.action for step in episode.steps]) == episode.results
    with corridor(store=path) as client:
        assert client.experts(["train/2", "train/0", "train/2"]) == episodes
        assert client.stats()["experts_simulated"] == 0


def test_unknown_names_are_the_callers_mistake() -> None:
    with corridor(processes=1) as client:
        with pytest.raises(UsageError, match=r"no split 'dve'. Did you mean 'dev'\?"):
            client.tasks("dve")
        with pytest.raises(UsageError, match="Environment 'toy' has no task 'train/77'"):
            client.open("train/77").reset().result(10)
        with pytest.raises(UsageError, match="Environment 'toy' has no task 'nope'"):
            client.experts(["train/0", "nope"])
        with pytest.raises(RuntimeError, match="reset before its first step"):
            client.open("train/0").step("left")
        assert client.stats()["failures"] == client.stats()["restarts"] == 0


def test_cancelled_answers_count_as_done_for_whoever_waits() -> None:
    with corridor(processes=1, instances=1) as client:
        client.open("train/0").reset().result(10)
        futures = [client.open(task).reset() for task in TASKS]
        client.close()
        done, waiting = wait(futures, timeout=10)
    assert len(done) == 6
    assert not waiting


def _walk(path: Path, answers: multiprocessing.Queue) -> None:  # pyright: ignore[reportMissingTypeArgument]
    with corridor(processes=1, store=path) as client:
        answers.put(play_together(client, PLAYED, PLANS))


def test_programs_may_share_the_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    programs = [context.Process(target=_walk, args=(tmp_path / "c.sqlite", answers)) for _ in range(2)]
    for program in programs:
        program.start()
    outcomes = [answers.get(timeout=60) for _ in programs]
    for program in programs:
        program.join(20)
    assert outcomes[0] == outcomes[1] == played_plainly(False)
