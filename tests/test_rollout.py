from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentcredit.envs.base import StepResult
from agentcredit.episodes import Episode, StopReason, Task, episode_from_json, episode_to_json
from agentcredit.policies.scripted import ExpertPolicy, RandomPolicy
from agentcredit.policies.speakers import TextSpeaker
from agentcredit.rollout import Answer, Live, Settings, play
from tests.envs.corridor import TASKS, corridor

SETTINGS = Settings(layout="dialogue", max_turns=12, retries=1)


def wanted(tasks: Sequence[str] = TASKS, siblings: int = 1) -> list[tuple[Task, int]]:
    return [(Task("toy", "train", task, "key", "open the chest", "h"), s) for task in tasks for s in range(siblings)]


def outcome(episode: Episode) -> tuple[Any, ...]:
    return episode.task.id, episode.sibling, episode.success, episode.stop_reason, [t.action for t in episode.turns]


class Scripted:
    """Answers one action for ever, in the form asked for; lockstep as a model's policy is."""

    def __init__(self, action: str, lockstep: bool = True, well_formed: bool = True, stop_at: int = 99) -> None:
        self.action, self.lockstep, self.well_formed, self.stop_at = action, lockstep, well_formed, stop_at
        self.queue: list[Live] = []
        self.batches: list[int] = []
        self.released: list[str] = []

    def submit(self, live: Sequence[Live]) -> None:
        self.queue.extend(live)

    def collect(self) -> list[tuple[Live, Answer]]:
        live, self.queue = self.queue, []
        self.batches.append(len(live))
        full = StopReason.CONTEXT_OVERFLOW
        return [
            (e, Answer("", self.action, self.well_formed, stop=full if len(e.turns) >= self.stop_at else None))
            for e in live
        ]

    def release(self, live: Live) -> None:
        self.released.append(live.session)


def test_expert_wins_and_the_turns_tell_the_whole_story():
    with corridor(markov=True) as client:
        played = play(client, TextSpeaker(ExpertPolicy(client, TASKS)), wanted(), SETTINGS, "toy 1")
    assert [episode.task.id for episode in played.episodes] == TASKS
    # Task n starts at place n mod 5: n steps left, take, four right, open.
    assert [len(episode.turns) for episode in played.episodes] == [6, 7, 8, 9, 10, 6]
    for episode in played.episodes:
        assert (episode.success, episode.stop_reason, episode.ret) == (True, StopReason.SUCCESS, 1.0)
        assert [turn.reward for turn in episode.turns] == [0.0] * (len(episode.turns) - 1) + [1.0]
        for before, after in zip(episode.turns, episode.turns[1:], strict=False):
            assert before.next_observation == after.observation
            assert (before.next_state_key, before.next_lifted_key) == (after.state_key, after.lifted_key)


def test_turn_budget_ends_an_episode_as_the_agents_failure():
    with corridor() as client:
        (episode,) = play(client, Scripted("left"), wanted(["train/2"]), SETTINGS).episodes
    assert (len(episode.turns), episode.stop_reason, episode.success) == (12, StopReason.MAX_TURNS, False)
    assert [turn.valid for turn in episode.turns] == [True, True] + [False] * 10


def test_five_malformed_answers_in_a_row_end_an_episode():
    with corridor() as client:
        (episode,) = play(client, Scripted("left", well_formed=False), wanted(["train/2"]), SETTINGS).episodes
    assert (len(episode.turns), episode.stop_reason) == (5, StopReason.PARSE_ERRORS)
    assert not any(turn.valid for turn in episode.turns)


def test_a_full_context_ends_an_episode_before_the_answer_is_played():
    with corridor() as client:
        (episode,) = play(client, Scripted("right", stop_at=3), wanted(["train/2"]), SETTINGS).episodes
    assert (len(episode.turns), episode.stop_reason) == (3, StopReason.CONTEXT_OVERFLOW)


def test_a_lockstep_policy_is_asked_for_all_live_episodes_at_once():
    speaker = Scripted("left")
    with corridor(per_process=6) as client:
        play(client, speaker, wanted(siblings=2), SETTINGS)
    assert speaker.batches == [12] * 12
    assert sorted(speaker.released) == sorted(f"{task}#{s}#0" for task in TASKS for s in range(2))


def test_no_more_episodes_are_live_than_there_are_slots():
    speaker = Scripted("left")
    with corridor(instances=4) as client:
        played = play(client, speaker, wanted(siblings=2), SETTINGS)
        replayed = client.stats()["steps_replayed"]
    assert max(speaker.batches) == 4
    assert sum(speaker.batches) == 12 * 12
    assert len(played.episodes) == 12
    assert replayed == 0


def test_in_lockstep_newcomers_come_in_waves():
    class EndsOneByOne(Scripted):
        """The n-th episode says its last word at its n-th turn; remembers how many began with each batch."""

        def collect(self) -> list[tuple[Live, Answer]]:
            newcomers.append(sum(not episode.turns for episode in self.queue))
            return [
                (live, Answer("", "left", True, stop=StopReason.CONTEXT_OVERFLOW if len(live.turns) == n else None))
                for live, _ in super().collect()
                for n in [TASKS.index(live.task.id)]
            ]

    newcomers: list[int] = []
    with corridor(instances=4) as client:
        play(client, EndsOneByOne("left"), wanted(), SETTINGS)
    # Slots for 4 of 6: 0, 1, 2, 3 begin; 0 and 1 end with the first two batches, which makes room for 4 and 5.
    assert newcomers == [4, 0, 2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("lockstep", [True, False])
def test_groups_hold_the_siblings_of_each_task(lockstep: bool):
    with corridor(instances=4) as client:
        played = play(client, Scripted("left", lockstep), wanted(TASKS[:3], siblings=4), SETTINGS)
    groups = played.groups()
    assert [group.task.id for group in groups] == TASKS[:3]
    assert [[episode.sibling for episode in group.episodes] for group in groups] == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("fault", ["die", "garbage", "raise"])
def test_a_fault_of_the_worker_changes_no_episode(tmp_path: Path, fault: str):
    def episodes(**options: Any) -> list[tuple[Any, ...]]:
        with corridor(log_path=tmp_path / "log", **options) as client:
            speaker = TextSpeaker(RandomPolicy(), (3,))
            return [outcome(e) for e in play(client, speaker, wanted(siblings=2), SETTINGS).episodes]

    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / fault).touch()
    undisturbed = episodes()
    assert episodes(faults=str(faults)) == undisturbed
    assert not (faults / fault).exists()


def test_harness_failures_are_retried_then_reported_apart_and_kept_out_of_groups(tmp_path: Path):
    class DiesOnTaskOne(TextSpeaker):
        def __init__(self) -> None:
            super().__init__(ReplayByTask())

    class ReplayByTask:
        name = "dies"

        def act(self, task_id: str, turn: int, seen: StepResult, noise_key: tuple[Any, ...]) -> tuple[str, str]:
            return "", "die!" if task_id == "train/1" else "left"

    with corridor(retries=1, log_path=tmp_path / "log") as client:
        played = play(client, DiesOnTaskOne(), wanted(TASKS[:3], siblings=2), SETTINGS)
    reasons = [(episode.task.id, episode.stop_reason) for episode in played.episodes]
    assert reasons == [
        (t, StopReason.ENV_ERROR if t == "train/1" else StopReason.MAX_TURNS) for t in TASKS[:3] for _ in (0, 1)
    ]
    assert [group.task.id for group in played.groups()] == ["train/0", "train/2"]


def test_an_episode_survives_its_json_form():
    with corridor(markov=True) as client:
        (episode,) = play(client, TextSpeaker(RandomPolicy(), (1,)), wanted(["train/3"]), SETTINGS).episodes
    import json

    again = episode_from_json(json.loads(json.dumps(episode_to_json(episode))))
    assert outcome(again) == outcome(episode)
    assert again.turns[0].response_logprobs.dtype == episode.turns[0].response_logprobs.dtype
    assert episode_to_json(again) == episode_to_json(episode)
