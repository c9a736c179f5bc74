from __future__ import annotations

from typing import Any

import pytest

from agentcredit.policies.base import Request
from agentcredit.policies.cohort import trunks_of
from agentcredit.policies.dialogue import Template
from agentcredit.policies.transformers import TransformersPolicy


def test_neighbours_that_begin_alike_have_the_last_of_them_as_trunk():
    contexts = [[1, 2, 3, 9], [1, 2, 3, 4, 5, 9], [7, 8], [7, 8, 8, 8, 8], [5]]
    # The first two share 3 and 5 tokens with the second; [7, 8] lies in its trunk whole, but one token is left to compute.
    assert trunks_of(contexts) == [(1, 3), (1, 5), (3, 1), (3, 4), (4, 0)]


def test_less_than_half_in_common_is_no_trunk():
    assert trunks_of([[1, 2, 3, 4, 5], [1, 2, 9]]) == [(0, 4), (1, 2)]
    assert trunks_of([]) == []


def test_answers_are_those_of_contexts_computed_alone(model: Any, template: Template):
    policy = TransformersPolicy(model, template)
    episode = template.opening("", "you see a fridge 1 and the apple 2")
    contexts = []
    for turn in range(5):
        contexts += [[*episode, *template.encode(note)] for note in ("open", "go to countertop 2")]
        episode = [*episode, *template.encode(f"you arrive at the countertop {turn} and see")]
    contexts.append(template.opening("", "open fridge 1"))
    requests = [Request(f"r{k}", context, (0, k), 12) for k, context in enumerate(contexts)]
    together = policy.answer(requests)
    for request, answer in zip(requests, together, strict=True):
        policy.submit([request])
        (alone,) = policy.collect()
        assert answer.session == request.session
        assert answer.ids == alone.ids
        assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
