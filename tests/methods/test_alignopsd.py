"""T7: AlignOPSD as a method: what is asked of the model, what is conserved, and the ablations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.errors import UsageError
from agentcredit.methods.alignopsd import random_segments
from agentcredit.methods.registry import build
from agentcredit.methods.teacher import teacher_prompt
from agentcredit.policies.base import Response
from agentcredit.training.packing import materialise
from tests.methods.build import Words, episode, group, tools, turn, walk

THOUGHTS = ("find", "take", "put")


def thinking(*thoughts: str, success: bool, template: Words) -> Any:
    """An episode whose turns think one word and answer it, with log-probability −1 a token."""
    turns = [
        replace(
            turn(f"s{n}", f"s{n + 1}", reward=float(success and n == len(thoughts) - 1), action=word),
            prompt_ids=(*template.encode(f"see{n}"), 1),
            response_ids=tuple(template.encode(f"say {word}")),
            response_logprobs=np.array([-1.0, -1.0], dtype=np.float32),
            thought=word,
        )
        for n, word in enumerate(thoughts)
    ]
    return episode(turns, success)


class Model:
    """Thinks at every turn what the table says for the observation it was asked at, and likes the words of the table."""

    def __init__(self, template: Words, thoughts: dict[str, str], likes: dict[str, float]) -> None:
        self.template, self.thoughts, self.likes = template, thoughts, likes
        self.prompts: list[str] = []
        self.rows: list[str] = []

    def generate(self, prompts: Any, keys: Any, max_new_tokens: int | None = None) -> list[Response]:
        self.prompts += [self.template.read(prompt) for prompt in prompts]
        answers = []
        for prompt in prompts:
            seen = next(word for word in reversed(self.template.read(prompt).split()) if word.startswith("see"))
            ids = self.template.encode(f"<think> {self.thoughts[seen]} </think> <action> go </action>")
            answers.append(Response("", tuple(ids), np.zeros(len(ids), dtype=np.float32), finished=True))
        return answers

    def embed(self, texts: Any) -> np.ndarray:
        return np.array([[float(text == known) for known in THOUGHTS] for text in texts])

    def logprobs(self, rows: Any) -> list[np.ndarray]:
        self.rows += [self.template.read(row.ids) for row in materialise(rows)]
        return [
            np.array(
                [
                    self.likes.get(self.template.read([i]), -1.0) if s else 0.0
                    for i, s in zip(r.ids, r.sampled, strict=True)
                ],
                dtype=np.float32,
            )
            for r in rows
        ]

    def tools(self, seed: int = 0) -> Any:
        return replace(
            tools(template=self.template, generate=self.generate, embed=self.embed, logprobs=self.logprobs),
            rng=np.random.default_rng(seed),
        )


@pytest.fixture
def scene() -> tuple[Any, Model]:
    template = Words()
    siblings = group(
        thinking("find", "take", "put", success=True, template=template),
        thinking("find", "find", "take", "put", success=False, template=template),
    )
    model = Model(
        template, {"see0": "find", "see1": "take", "see2": "put", "see3": "put"}, {"find": -1.5, "take": -0.5}
    )
    return siblings, model


def credit(siblings: Any, given: Any, **params: Any) -> Any:
    config = MethodConfig(name="alignopsd", params={"gamma": 0.9, **params}, invalid_mode="off")
    return build(config).credit([siblings], given)


def factors(siblings: Any, assignment: Any) -> list[list[list[float]]]:
    base = build(MethodConfig(name="grpo", invalid_mode="off")).credit([siblings], tools()).credits[0]
    return [
        [(a / b).tolist() for a, b in zip(ours.advantage_TN, theirs.advantage_TN, strict=True)]
        for ours, theirs in zip(assignment.credits[0], base, strict=True)
    ]


def test_the_teacher_knows_how_a_sibling_succeeded(scene: tuple[Any, Model]):
    siblings, model = scene
    credit(siblings, model.tools())
    note = "Another attempt at this task succeeded by: find; take; put"
    assert model.prompts[0] == "see0 1"  # the only success has no other to learn from
    assert model.prompts[3] == f"see0 {note} 1"
    assert model.prompts[4] == f"see0 1 say find see1 {note} 1"
    lost = siblings.episodes[1]
    assert model.template.read(teacher_prompt(model.template, lost, 1, None)) == "see0 1 say find see1 1"


def test_a_response_is_heard_in_the_contexts_of_like_thoughts(scene: tuple[Any, Model]):
    siblings, model = scene
    credit(siblings, model.tools())
    # The failure looked twice; its "find" at turn 1 matches what the teacher thought at turn 0 of the success.
    assert "see0 1 say find" in model.rows
    # Its "take" at turn 2 matches the success's turn 1: the response in that context.
    assert "see0 1 say find see1 1 say take" in model.rows


def test_weights_by_hand_and_conserved(scene: tuple[Any, Model]):
    siblings, model = scene
    # Without correction δ is the teacher's −1.5, −0.5 or −1 against −1 on the word, 0 on "say": turn means −¼ for find,
    # ¼ for take, 0 for put. One span over all turns, T_c = 1, μ = 1, in a failure with the sign turned.
    got = factors(
        siblings,
        credit(
            siblings, model.tools(), alpha_max=0.0, allocation="turn", credit_temperature=1.0, mixing=1.0, cap=100.0
        ),
    )
    for scores, weights in (([-0.25, 0.25, 0.0], got[0]), ([0.25, 0.25, -0.25, 0.0], got[1])):
        share = np.exp(scores) / np.exp(scores).sum() * len(scores)
        np.testing.assert_allclose([w[0] for w in weights], share)
        assert all(w[0] == w[1] for w in weights)
        assert sum(map(sum, weights)) == pytest.approx(2 * len(scores))
    half = factors(
        siblings,
        credit(
            siblings, model.tools(), alpha_max=0.0, allocation="turn", credit_temperature=1.0, mixing=0.5, cap=100.0
        ),
    )
    np.testing.assert_allclose(np.array(half[1]), 0.5 + 0.5 * np.array(got[1]))


@pytest.mark.parametrize("allocation", ["segment", "turn", "token", "random"])
@pytest.mark.parametrize("weighting", ["capped", "bounded"])
def test_every_allocation_conserves_the_episodes_credit(scene: tuple[Any, Model], allocation: str, weighting: str):
    siblings, model = scene
    assignment = credit(siblings, model.tools(), allocation=allocation, weighting=weighting, credit_temperature=0.1)
    for weights in factors(siblings, assignment):
        assert sum(map(sum, weights)) == pytest.approx(sum(map(len, weights)))
        assert min(map(min, weights)) >= 0
    assert np.ptp([w for weights in factors(siblings, assignment) for part in weights for w in part]) > 0.01


def test_what_leaves_the_base_alone(scene: tuple[Any, Model]):
    siblings, model = scene
    assert np.all(np.array(factors(siblings, credit(siblings, model.tools(), mixing=0.0))[1]) == 1)
    assert not model.prompts  # μ = 0 asks nobody
    agrees = Model(model.template, model.thoughts, {})
    np.testing.assert_allclose(np.array(factors(siblings, credit(siblings, agrees.tools()))[1]), 1.0)
    lost = group(walk(["A", "B"], False), walk(["A", "C"], False))
    silent = Model(model.template, {}, {})
    credit(lost, silent.tools())
    assert not silent.prompts  # no advantage, no question


def test_gamma_is_calibrated_once_and_kept(scene: tuple[Any, Model]):
    siblings, model = scene
    method = build(MethodConfig(name="alignopsd", params={"gamma": "auto", "gamma_quantile": 0.5}))
    first = method.credit([siblings], model.tools()).metrics["alignopsd/gamma"]
    state = method.state_dict()
    again = build(MethodConfig(name="alignopsd", params={"gamma": "auto", "gamma_quantile": 0.5}))
    again.load_state_dict(state)
    other = Model(model.template, dict.fromkeys(model.thoughts, "put"), {})
    assert again.credit([siblings], other.tools()).metrics["alignopsd/gamma"] == first


def test_metrics(scene: tuple[Any, Model]):
    siblings, model = scene
    metrics = credit(siblings, model.tools()).metrics
    # Of the failure's four turns, find 0, find 1, take 2 and put 3 match turns 0, 0, 1, 2 of the success; of the success's
    # three, find matches 0, take 1 (thought at see1), put 2 or 3 (see2 and see3 think "put"; the earlier).
    assert metrics["alignopsd/with_sources_share"] == 1.0
    assert metrics["alignopsd/off_turn_share"] == pytest.approx(3 / 7)
    assert metrics["alignopsd/turns_apart"] == pytest.approx(3 / 7)
    assert metrics["alignopsd/segment_turns"] > 0


def test_random_segments_cover_all_turns():
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 9, 30):
        parts = random_segments(n, 2, 8, rng)
        assert [t for a, b in parts for t in range(a, b)] == list(range(n))
        assert all(b - a <= 8 for a, b in parts)


def test_what_it_needs_is_said(scene: tuple[Any, Model]):
    with pytest.raises(UsageError, match="sentence encoder"):
        credit(scene[0], tools())
    with pytest.raises(UsageError, match="2 · shortest"):
        build(MethodConfig(name="alignopsd", params={"longest": 2}))
