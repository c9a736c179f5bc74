from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentcredit.policies.actions import parse
from agentcredit.policies.base import Request, Response
from agentcredit.policies.dialogue import Template
from agentcredit.policies.transformers import TransformersPolicy

ACTIONS = ("go to fridge 1", "go to countertop 2", "open fridge 1", "take apple 1 from fridge 1")
SIGHTS = ["you see a fridge 1", "you arrive at the countertop 2 and see", "open", "you see a apple 1 and the apple 2"]


def play(
    policy: TransformersPolicy, sessions: list[int], turns: int, leaving: dict[int, int] | None = None
) -> dict[int, list[tuple[list[int], Response]]]:
    """Plays dialogues of uneven prompts; odd sessions are restricted. ``leaving``: session to the turn it ends after."""
    template, leaving = policy.template, leaving or {}
    contexts = {s: template.opening("", " ".join(SIGHTS[: 1 + s % 4])) for s in sessions}
    played: dict[int, list[tuple[list[int], Response]]] = {s: [] for s in sessions}
    for turn in range(turns):
        here = [s for s in sessions if leaving.get(s, turns) > turn]
        policy.submit([Request(f"s{s}", contexts[s], (0, s, turn), 24, 1.0, ACTIONS if s % 2 else None) for s in here])
        for s, response in zip(here, policy.collect(), strict=True):
            assert response.session == f"s{s}"
            played[s].append((contexts[s], response))
            reply = template.reply(SIGHTS[(s + turn) % 4], response.finished)
            contexts[s] = [*contexts[s], *response.ids, *reply]
        for s in here:
            if leaving.get(s) == turn + 1:
                policy.release(f"s{s}")
    return played


def test_kept_cache_gives_the_log_probabilities_of_a_fresh_forward_pass(model: Any, template: Template):
    policy = TransformersPolicy(model, template)
    leaving = {0: 1, 1: 2, 2: 1, 5: 3}  # rows leave, so that the cache is compacted in between
    for turns in play(policy, list(range(8)), 5, leaving).values():
        for context, response in turns:
            free = policy.score([(context, response.ids)])[0]
            choice = np.array([c is None for c in response.allowed or [None] * len(response.ids)])
            assert response.logprobs[choice] == pytest.approx(free[choice], abs=1e-4)


def test_a_sample_does_not_depend_on_who_else_is_in_the_batch(model: Any, template: Template):
    together = play(TransformersPolicy(model, template), list(range(6)), 3)
    alone = play(TransformersPolicy(model, template), [3], 3)
    assert [response.ids for _, response in together[3]] == [response.ids for _, response in alone[3]]


def test_the_same_play_is_bit_identical(model: Any, template: Template):
    one, two = (play(TransformersPolicy(model, template), list(range(5)), 3) for _ in range(2))
    for s in one:
        for (_, first), (_, second) in zip(one[s], two[s], strict=True):
            assert first.ids == second.ids
            assert first.logprobs.tobytes() == second.logprobs.tobytes()


def test_restricted_responses_are_well_formed_admissible_and_renormalised(model: Any, template: Template):
    import torch

    policy = TransformersPolicy(model, template)
    for turns in play(policy, [1, 3, 5], 4).values():
        for context, response in turns:
            said = parse(template.decode(response.ids))
            assert said.well_formed
            assert said.action in ACTIONS
            assert response.finished
            assert response.allowed is not None
            with torch.no_grad():
                logits = model(torch.tensor([[*context, *response.ids]])).logits[0]
            for place, choice in enumerate(response.allowed):
                if choice is None:
                    continue
                assert response.ids[place] in choice
                among = torch.log_softmax(logits[len(context) + place - 1][list(choice)], -1)
                expected = float(among[choice.index(response.ids[place])])
                assert response.logprobs[place] == pytest.approx(expected, abs=1e-4)


def test_a_thought_that_never_ends_is_closed_in_time_for_the_longest_action(model: Any, template: Template):
    policy = TransformersPolicy(model, template)
    longest = len(template.encode("</think><action>take apple 1 from fridge 1</action>")) + 1
    for budget in (longest + 2, longest + 5):
        policy.submit([Request("s", template.opening("", "open"), ("k", budget), budget, 1.0, ACTIONS)])
        (response,) = policy.collect()
        policy.release("s")
        assert len(response.ids) <= budget
        assert parse(template.decode(response.ids)).action in ACTIONS


def test_restriction_works_where_tags_are_several_tokens(model: Any):
    plain = Template(_tokenizer_without_tags(), "plain")
    assert len(plain.encode("<action>")) > 1
    policy = TransformersPolicy(model, plain)
    assert policy.close_id is None
    for key in range(4):
        policy.submit([Request(f"s{key}", plain.opening("", "open"), (key,), 60, 1.0, ACTIONS)])
        (response,) = policy.collect()
        said = parse(plain.decode(response.ids))
        assert said.well_formed
        assert said.action in ACTIONS


def _tokenizer_without_tags() -> Any:
    """As the tiny model's, with the tags left to the byte-level vocabulary, which is what a hub model has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from agentcredit.policies.tiny import CHAT_TEMPLATE, END, PAD

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[PAD, END], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(SIGHTS * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=PAD)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def test_an_unrestricted_response_stops_at_its_budget(model: Any, template: Template):
    policy = TransformersPolicy(model, template)
    responses = []
    for key in range(8):
        policy.submit([Request(f"s{key}", template.opening("", "open"), (key,), 4, 1.0)])
        responses += policy.collect()
    assert all(len(response.ids) <= 4 for response in responses)
    assert any(not response.finished for response in responses)
    assert all(response.finished == (response.ids[-1] == template.end_id) for response in responses)


def test_score_matches_the_log_softmax_of_a_plain_forward_pass(model: Any, template: Template):
    import torch

    policy = TransformersPolicy(model, template)
    pairs = [
        (template.encode("go to the"), template.encode("fridge 1")),
        (template.encode("you"), template.encode("see a apple 1")),
    ]
    for (prompt, response), score in zip(pairs, policy.score(pairs, temperature=0.7), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]])).logits[0] / 0.7
        expected = [
            float(torch.log_softmax(logits[len(prompt) - 1 + k], -1)[token]) for k, token in enumerate(response)
        ]
        assert score == pytest.approx(expected, abs=1e-5)
