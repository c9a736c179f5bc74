from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentcredit.envs.base import EnvSpec, StepResult
from agentcredit.episodes import Episode, StopReason, Task
from agentcredit.methods.base import Credit
from agentcredit.policies.dialogue import Template
from agentcredit.policies.prompts import Prompts
from agentcredit.policies.speakers import Sampling, TokenSpeaker
from agentcredit.policies.transformers import TransformersPolicy
from agentcredit.rollout import Settings, play
from agentcredit.training.rows import rows_of
from tests.envs.corridor import corridor

TASK = Task("toy", "train", "train/2", "key", "open the chest", "h")


def play_one(model: Any, template: Template, layout: Any, max_context: int, turns: int = 14) -> Episode:
    sampling = Sampling(layout, 12, max_context, 1.0, restrict_actions=False, noise=(1, "test"))
    with corridor() as client:
        prompts = Prompts(client.spec(), "terse", show_admissible=True)
        speaker = TokenSpeaker(TransformersPolicy(model, template), template, prompts, sampling)
        # Random answers are malformed: an end mark after twelve tokens is luck, so the rule about those is out of the way.
        settings = Settings(layout, turns)
        import agentcredit.rollout as rollout

        before, rollout.PARSE_ERRORS_IN_A_ROW = rollout.PARSE_ERRORS_IN_A_ROW, 99
        try:
            (episode,) = play(client, speaker, [(TASK, 0)], settings).episodes
        finally:
            rollout.PARSE_ERRORS_IN_A_ROW = before
    return episode


def rescored(model: Any, template: Template, episode: Episode) -> float:
    """Largest difference between stored log-probabilities and those of each row scored by itself."""
    policy, gap = TransformersPolicy(model, template), 0.0
    for row in rows_of(episode, Credit(tuple(np.zeros(turn.n_tokens) for turn in episode.turns))):
        ids = row.ids.tolist()
        score = policy.score([(ids[:1], ids[1:])])[0]
        at = np.flatnonzero(row.sampled)
        gap = max(gap, float(np.abs(score[at - 1] - row.rollout_logprobs[at]).max()))
    return gap


def test_a_dialogue_that_fits_is_one_row_of_the_sampled_tokens(model: Any, template: Template):
    episode = play_one(model, template, "dialogue", 4000)
    assert [turn.truncated_turns for turn in episode.turns] == [0] * 14
    (row,) = rows_of(episode, Credit(tuple(np.zeros(turn.n_tokens) for turn in episode.turns)))
    assert row.ids[row.sampled].tolist() == [token for turn in episode.turns for token in turn.response_ids]
    assert rescored(model, template, episode) < 1e-4


def test_a_long_dialogue_is_rebuilt_without_its_oldest_turns_and_split_there(model: Any, template: Template):
    episode = play_one(model, template, "dialogue", 260)
    cut = [turn for turn in episode.turns if turn.truncated_turns]
    assert cut
    for turn in cut:
        text = template.tokenizer.decode(list(turn.prompt_ids))
        assert text.startswith("<|user|>Task: open the chest\n")  # the task survives
        assert turn.observation in text  # and so does what is seen now
        assert len(turn.prompt_ids) + 12 <= 260
    rows = rows_of(episode, Credit(tuple(np.zeros(turn.n_tokens) for turn in episode.turns)))
    assert len(rows) == 1 + len(cut)
    assert all(len(row) <= 260 for row in rows)
    assert sum(int(row.sampled.sum()) for row in rows) == episode.n_tokens
    assert rescored(model, template, episode) < 1e-4


def test_a_window_prompt_is_whole_each_turn_and_shows_the_last_pairs(model: Any, template: Template):
    episode = play_one(model, template, "window", 2000, turns=4)
    for number, turn in enumerate(episode.turns):
        text = template.tokenizer.decode(list(turn.prompt_ids))
        assert text.startswith("<|user|>Task: open the chest\n")
        assert f"Now: {turn.observation}" in text
        for earlier in episode.turns[max(0, number - 2) : number]:
            assert f"{earlier.observation}\n> {earlier.action}\n" in text
    assert len(rows_of(episode, Credit(tuple(np.zeros(turn.n_tokens) for turn in episode.turns)))) == 4
    assert rescored(model, template, episode) < 1e-4


@pytest.mark.parametrize("layout", ["dialogue", "window"])
def test_an_observation_that_alone_is_too_long_ends_the_episode(model: Any, template: Template, layout: str):
    episode = play_one(model, template, layout, 40)
    assert (episode.turns, episode.stop_reason) == ((), StopReason.CONTEXT_OVERFLOW)


def spec() -> EnvSpec:
    return EnvSpec("e", "1", "e 1", True, False, 9, "window", "Rules.", "done", {}, "made", False)


def test_the_full_style_states_rules_and_answer_form_and_the_terse_one_does_not():
    assert Prompts(spec(), "full").system().startswith("Rules.\nAnswer each time")
    assert Prompts(spec(), "terse").system() == ""


def test_window_text_counts_all_actions_and_numbers_those_shown():
    text = Prompts(spec(), "terse", history=1).window("g", [("o1", "a1"), ("o2", "a2")], StepResult("o3"))
    assert text == "Task: g\nYou have taken 2 actions; the last 1:\n[2] o2\n> a2\nNow: o3"


def test_the_hash_of_prompts_changes_with_their_wording():
    kinds = [
        Prompts(spec(), "full"),
        Prompts(spec(), "terse"),
        Prompts(spec(), "terse", True),
        Prompts(spec(), "terse", False, 1),
    ]
    assert len({prompts.hash() for prompts in kinds}) == 4
