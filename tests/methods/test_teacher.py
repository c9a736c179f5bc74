"""What a teacher is told, and what its opinion does to a token (T9: RLSD, StepOPSD)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.errors import UsageError
from agentcredit.methods.registry import build
from agentcredit.methods.rlsd import band, faded
from agentcredit.methods.sdar import gate
from agentcredit.methods.stepopsd import step_weights
from agentcredit.methods.teacher import action_tokens, gaps, success_of_another
from agentcredit.training.packing import materialise
from tests.methods.build import Words, episode, group, tools, turn, walk
from tests.methods.vectors import cases


class Listener:
    """A model that finds each token as likely as the table says, by the token; it remembers the rows that it was given."""

    def __init__(self, table: dict[int, float]) -> None:
        self.table = table
        self.rows: list[Any] = []

    def __call__(self, rows: Any) -> list[np.ndarray]:
        self.rows = list(rows)
        return [
            np.array([self.table[i] if s else 0.0 for i, s in zip(r.ids, r.sampled, strict=True)], dtype=np.float32)
            for r in rows
        ]


def told(template: Words, **listener: Any) -> Any:
    return tools(template=template, **listener)


def answered(*words: str, success: bool, template: Words, layout: Any = "dialogue") -> Any:
    """An episode whose turns each answer one word, sampled with log-probability −1."""
    turns = [
        replace(
            turn(f"s{n}", f"s{n + 1}", tokens=1, reward=float(success and n == len(words) - 1), action=word),
            prompt_ids=(*template.encode(f"see{n}"), 1),
            response_ids=tuple(template.encode(word)),
            response_logprobs=np.array([-1.0], dtype=np.float32),
        )
        for n, word in enumerate(words)
    ]
    return replace(episode(turns, success), layout=layout)


def test_a_note_stands_between_the_context_and_the_answer():
    template = Words()
    groups = [group(answered("go", "take", success=False, template=template))]
    listener = Listener(dict.fromkeys(range(300), -0.25))
    delta = gaps(groups, [[[None, "look out"]]], told(template, logprobs=listener), "it")
    whole = [template.read(row.ids) for row in materialise(listener.rows)]
    assert whole == ["see0 1 go see1 1 take", "see0 1 go see1 look out 1 take"]
    assert [row.sampled.tolist() for row in listener.rows] == [[False] * 6, [False, False, False, True]]
    assert [d.tolist() for d in delta[0][0]] == [[0.0], [0.75]]  # −0.25 against −1; nothing was said at the first turn


def test_in_windows_only_the_turns_own_prompt_is_continued():
    template = Words()
    groups = [group(answered("go", "take", success=False, template=template, layout="window"))]
    listener = Listener(dict.fromkeys(range(300), -0.25))
    gaps(groups, [[[None, "look out"]]], told(template, logprobs=listener), "it")
    assert [template.read(row.ids) for row in materialise(listener.rows)][-1] == "see1 look out 1 take"


def test_without_notes_nothing_is_asked():
    groups = [group(walk(["A", "B"], False))]
    assert [d.tolist() for d in gaps(groups, [[[None]]], tools(), "it")[0][0]] == [[0.0]]
    with pytest.raises(UsageError, match="it scores responses again"):
        gaps(groups, [[["a note"]]], tools(), "it")


def test_tokens_of_the_action():
    template = Words()
    said = replace(turn(), response_ids=tuple(template.encode("<think> hm </think> <action> go on </action>")))
    assert action_tokens(template, said).tolist() == [False, False, False, True, True, True, True]
    bare = replace(turn(), response_ids=tuple(template.encode("no tags at all")))
    assert action_tokens(template, bare).all()


def test_the_shortest_success_of_another_sibling():
    siblings = group(walk(["A", "B", "G"], True), walk(["A", "G"], True), walk(["A", "B"], False))
    long, short, lost = siblings.episodes
    assert [success_of_another(siblings, e) for e in (long, short, lost)] == [short, long, short]
    assert success_of_another(group(lost, lost), lost) is None


@pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in cases("sdar_rlsd")])
def test_rlsd_of_sdar(case: dict[str, Any]):
    given = case["in"]
    for row, n in enumerate(given["n_tokens"]):
        delta = np.array(given["teacher_logp"][row]) - np.array(given["student_logp"][row])
        advantage = np.full(n, given["seq_advantage"][row])
        got = band(advantage, delta[:n], given["rlsd_lambda"], given["rlsd_clip_eps"])
        np.testing.assert_allclose(got, case["out"]["token_advantage"][row][:n], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c["name"]) for c in cases("sdar_loss") if c["in"]["loss_agg_mode"] == "token-mean"],
)
def test_sdars_gradient_is_that_of_weighted_cross_entropy(case: dict[str, Any]):
    given, want = case["in"], case["out"]["grad_student_logp"]
    total = sum(given["n_tokens"])
    for student, teacher, n, gradient in zip(
        given["student_logp"], given["teacher_logp"], given["n_tokens"], want, strict=True
    ):
        weight = gate(np.array(teacher) - np.array(student), given["gate_beta"])[:n] / total
        np.testing.assert_allclose(-weight, gradient[:n], rtol=1e-5, atol=1e-6)  # d/dlogp of −weight·logp


def test_sdar_pulls_towards_what_a_success_suggests():
    template = Words()
    siblings = group(
        answered("take", success=True, template=template), answered("go", "take", success=False, template=template)
    )
    likes = Listener({template.encode("go")[0]: -2.0, template.encode("take")[0]: -1.0})
    method = build(MethodConfig(name="sdar", params={"lambda": 0.3, "beta": 1.0}))
    assignment = method.credit([siblings], told(template, logprobs=likes))
    won, lost = assignment.credits[0]
    # δ of "go" is −2 − (−1) = −1, of "take" 0; three tokens in all. The success has no other success to learn from.
    assert [w.tolist() for w in won.ce_response_TN or ()] == [[0.0]]
    np.testing.assert_allclose([float(w[0]) for w in lost.ce_response_TN or ()], [0.1 / (1 + np.e), 0.1 / 2])
    assert assignment.metrics["sdar/gate_open"] == 0
    base = build(MethodConfig(name="grpo")).credit([siblings], tools()).credits[0]
    assert [a.tolist() for a in lost.advantage_TN] == [a.tolist() for a in base[1].advantage_TN]


def test_lambda_fades():
    assert [faded(0.5, step, 4) for step in (1, 2, 3, 4, 5, 9)] == [0.5, 0.375, 0.25, 0.125, 0, 0]
    assert faded(0.5, 100, 0) == 0.5


def test_step_weights_by_hand():
    # σ(ln 3) = 3/4: twice that is 1.5, clipped to 1.2; σ(−ln 3) = 1/4: 0.5, clipped to 0.8. Their mean is 1 already.
    delta = np.array([np.log(3), -np.log(3)])
    np.testing.assert_allclose(step_weights(np.array([1.0, 1.0]), delta, 0.2, True), [1.2, 0.8])
    np.testing.assert_allclose(step_weights(np.array([-1.0, -1.0]), delta, 0.2, True), [0.8, 1.2])
    # 1.2, 1, 1, 1: mean 1.05.
    one = np.array([np.log(3), 0, 0, 0])
    np.testing.assert_allclose(step_weights(np.ones(4), one, 0.2, True), np.array([1.2, 1, 1, 1]) / 1.05)
    np.testing.assert_allclose(step_weights(np.ones(4), one, 0.2, False), [1.2, 1, 1, 1])


@pytest.mark.parametrize("name", ["rlsd", "stepopsd"])
def test_a_word_that_the_teacher_likes_is_blamed_less(name: str):
    template = Words()
    siblings = group(
        answered("take", success=True, template=template), answered("go", "take", success=False, template=template)
    )
    likes = Listener({template.encode("go")[0]: -3.0, template.encode("take")[0]: -0.1})
    base = build(MethodConfig(name="grpo")).credit([siblings], told(template)).credits[0]
    params = {"budget": False} if name == "stepopsd" else {}
    got = build(MethodConfig(name=name, params=params)).credit([siblings], told(template, logprobs=likes)).credits[0]
    go, take = (float(a[0]) for a in got[1].advantage_TN)
    assert go < float(base[1].advantage_TN[0][0]) < take < 0
    # The success has no other success to learn from.
    assert [a.tolist() for a in got[0].advantage_TN] == [a.tolist() for a in base[0].advantage_TN]


@pytest.mark.parametrize("name", ["rlsd", "stepopsd", "sdar"])
def test_lambda_zero_is_the_base_and_asks_nobody(name: str):
    siblings = group(walk(["A", "G"], True), walk(["A", "B"], False))
    got = build(MethodConfig(name=name, params={"lambda": 0.0})).credit([siblings], tools()).credits[0]
    base = build(MethodConfig(name="grpo")).credit([siblings], tools()).credits[0]
    for ours, theirs in zip(got, base, strict=True):
        assert [a.tolist() for a in ours.advantage_TN] == [a.tolist() for a in theirs.advantage_TN]
