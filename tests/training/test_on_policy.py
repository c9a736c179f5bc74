"""Real rollouts of the embedded policy, through rows, into the learner: what was sampled is what is trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentcredit.config import LossConfig, OptimConfig, TinyConfig, TrainConfig
from agentcredit.episodes import Episode, Layout, StopReason, Task, Turn
from agentcredit.methods.base import Credit
from agentcredit.policies.base import Request
from agentcredit.policies.dialogue import Template
from agentcredit.policies.tiny import new_model, train_tokenizer
from agentcredit.policies.transformers import TransformersPolicy
from agentcredit.training.learner import Learner
from agentcredit.training.rows import rows_of

ACTIONS = ("go to fridge 1", "go to countertop 2", "open fridge 1", "take apple 1 from fridge 1")
SIGHTS = ("you see a fridge 1", "you arrive at the countertop 2", "open", "you see a apple 1 and the apple 2")
TASK = Task(env="toy", split="train", id="t", type="toy", goal="", content_hash="0" * 16)


def play(policy: TransformersPolicy, layout: Layout, temperature: float) -> list[Episode]:
    """Six dialogues of two to four turns side by side; odd ones choose among the admissible actions."""
    template = policy.template
    prompts = {s: template.opening("be brief", " ".join(SIGHTS[: 1 + s % 4])) for s in range(6)}
    contexts: dict[int, list[int]] = {s: [] for s in prompts}
    turns: dict[int, list[Turn]] = {s: [] for s in prompts}
    for number in range(4):
        here = [s for s in prompts if number < 2 + s % 3]
        for s in here:
            contexts[s] = prompts[s] if layout == "window" else [*contexts[s], *prompts[s]]
        policy.submit(
            [
                Request(f"s{s}", contexts[s], (0, s, number), 24, temperature, actions=ACTIONS if s % 2 else None)
                for s in here
            ]
        )
        for s, response in zip(here, policy.collect(), strict=True):
            turns[s].append(
                Turn(tuple(prompts[s]), response.ids, response.logprobs, "", True, "", "", allowed=response.allowed)
            )
            contexts[s] = [*contexts[s], *response.ids]
            sight = SIGHTS[(s + number) % 4]
            prompts[s] = template.opening("", sight) if layout == "window" else template.reply(sight, response.finished)
    return [Episode(TASK, s, layout, tuple(turns[s]), 0.0, False, StopReason.FAILURE) for s in turns]


@pytest.mark.parametrize("layout", ["dialogue", "window"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_first_update_on_a_rollout_has_ratio_one(layout: Layout, temperature: float):
    torch.manual_seed(0)
    tokenizer = train_tokenizer([*ACTIONS, *SIGHTS] * 3, 400)
    model = new_model(TinyConfig(hidden=32, layers=2), tokenizer, 512)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # a random network of this size is nearly uniform; this one has preferences
    episodes = play(TransformersPolicy(model.eval(), Template(tokenizer, "tiny")), layout, temperature)
    rows = [
        row
        for episode in episodes
        for row in rows_of(
            episode, Credit(tuple(np.full(turn.n_tokens, float(episode.sibling) - 2.5) for turn in episode.turns))
        )
    ]
    assert len(rows) == (6 if layout == "dialogue" else sum(len(episode.turns) for episode in episodes))
    assert any(row.allowed is not None for row in rows)
    learner = Learner(model, LossConfig(), OptimConfig(), TrainConfig(tokens_per_microbatch=256), temperature)
    for row, scores in zip(rows, learner.logprobs(rows), strict=True):
        np.testing.assert_allclose(scores, row.rollout_logprobs, atol=1e-4)
    metrics = learner.update(rows, step=0)
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["logprob_gap_max"] < 1e-4
    # at another temperature the same rollout would not fit: the comparison above can fail
    other = Learner(model, LossConfig(), OptimConfig(), TrainConfig(), 2 * temperature)
    assert other.update(rows, step=1)["logprob_gap_max"] > 0.1
