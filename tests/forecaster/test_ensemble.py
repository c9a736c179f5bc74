"""Choosing among candidates by forecasts: scores by hand, and by a model asked one context at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentcredit.config import LossConfig, OptimConfig, TrainConfig
from agentcredit.forecaster.ensemble import Ensemble, RerankingPolicy
from agentcredit.methods.cope import CopeParams
from agentcredit.methods.forecasts import Writer
from agentcredit.policies.base import Request, Response
from agentcredit.training.learner import Learner
from agentcredit.training.packing import materialise
from tests.methods.build import Words

MARK = 9


class Drawn:
    """A policy that says what it is told, and remembers what it was asked."""

    def __init__(self, template: Words, said: list[str]) -> None:
        self.template, self.said = template, said
        self.asked: list[Request] = []

    def answer(self, requests: Any) -> list[Response]:
        self.asked += requests
        ids = [tuple(self.template.encode(self.said.pop(0))) for _ in requests]
        return [Response(r.session, i, np.zeros(len(i), np.float32), True) for r, i in zip(requests, ids, strict=True)]


class Likes:
    """Log-probabilities from a table: (the question's context, the last action) to that of the action."""

    def __init__(self, template: Words, table: dict[tuple[str, str], float]) -> None:
        self.template, self.table = template, table
        self.seen: list[str] = []

    def logprobs(self, rows: Any) -> list[np.ndarray]:
        found = []
        for own, row in zip(rows, materialise(rows), strict=True):
            text = self.template.read(row.ids.tolist())
            scored = self.template.read(row.ids[row.sampled].tolist()).rstrip(";")
            if row.sampled.any():
                self.seen.append(text)
                assert row.sampled.sum() == 1  # one word: what was executed in between is context
            context = text.split(" 2 9 ")[0]
            found.append(np.where(own.sampled, self.table.get((context, scored), 0.0), 0.0))
        return found


def policy_of(said: list[str], table: dict[tuple[str, str], float], **ensemble: Any) -> tuple[Any, Drawn, Likes]:
    template = Words(MARK)
    drawn, likes = Drawn(template, said), Likes(template, table)
    how = Ensemble(**{"candidates": 2, "horizon": 1, **ensemble})
    writer = Writer(template, True, CopeParams(horizon=how.horizon))
    return RerankingPolicy(drawn, likes, template, writer, how), drawn, likes  # pyright: ignore[reportArgumentType]


def act(action: str) -> str:
    return f"<think></think><action>{action}</action>"


def request(context: list[int], turn: int = 0, session: str = "s") -> Request:
    return Request(session, context, (0, "eval", "t", turn), 8)


def said_by(policy: Any, response: Response) -> str:
    return policy.template.read(response.ids)


# Turn 0 in context [10 MARK]: go is executed. Turn 1 in [10 MARK 20 11 MARK]: at lag 0 stay −1, run −2; at lag 1, from turn 0
# with go in between, stay −3, run −1. Together stay −4, run −3; with m = 1: stay −1 − 3/e = −2.10, run −2 − 1/e = −2.37.
TABLE = {
    ("10 9 20 11", "stay"): -1.0,
    ("10 9 20 11", "run"): -2.0,
    ("10", "stay"): -3.0,
    ("10", "run"): -1.0,
}


@pytest.mark.parametrize(
    ("decay", "best", "scores"), [(0.0, "run", (-4, -3)), (1.0, "stay", (-1 - 3 / math.e, -2 - 1 / math.e))]
)
def test_an_action_is_scored_at_every_lag_after_what_was_executed(decay: float, best: str, scores: tuple[float, float]):
    policy, _, likes = policy_of([act("go"), act("go"), act("stay"), act("run")], TABLE, decay=decay)
    policy.submit([request([10, MARK])])
    (first,) = policy.collect()
    assert said_by(policy, first) == act("go")
    assert likes.seen == []  # one action alone needs no score
    policy.submit([request([10, MARK, 20, 11, MARK], turn=1)])
    (second,) = policy.collect()
    assert said_by(policy, second) == act(best)
    assert likes.seen == [
        "10 9 20 11 2 9 stay;",
        "10 9 20 11 2 9 run;",
        "10 2 9 go; stay;",
        "10 2 9 go; run;",
    ]
    (found,) = policy.scores([([[10, MARK], [10, MARK, 20, 11, MARK]], ["go"], ["stay", "run"])])
    np.testing.assert_allclose(found, scores)
    assert (policy.turns, policy.contested, policy.changed) == (2, 1, int(best == "run"))


def test_the_noise_of_a_candidate_is_its_own_and_the_first_has_the_plain_policys():
    policy, drawn, _ = policy_of([act("go"), act("run"), act("go"), act("run")], {})
    policy.submit([request([10, MARK]), request([10, MARK], session="other")])
    assert [response.session for response in policy.collect()] == ["s", "other"]
    keys = [asked.noise_key for asked in drawn.asked]
    assert keys[:2] == [(0, "eval", "t", 0), (0, "eval", "t", 0, "candidate", 1)]
    assert len({asked.session for asked in drawn.asked}) == 4


def test_a_malformed_answer_is_taken_only_where_there_is_no_other():
    policy, _, _ = policy_of(["<think></think>", act("run"), "hm", "hm hm"], {})
    policy.submit([request([10, MARK])])
    assert said_by(policy, policy.collect()[0]) == act("run")
    policy.submit([request([10, MARK], turn=1)])
    assert said_by(policy, policy.collect()[0]) == "hm"


def test_an_episode_begins_without_a_past():
    said = [act("go"), act("go"), act("stay"), act("run")]
    policy, _, likes = policy_of(said, {})
    policy.submit([request([10, MARK])])
    policy.collect()
    policy.release("s")
    policy.submit([request([10, MARK])])
    policy.collect()
    assert likes.seen == ["10 2 9 stay;", "10 2 9 run;"]


@pytest.mark.parametrize("nested", [True, False], ids=["dialogue", "window"])
def test_scores_are_the_models_own_in_each_context_alone(nested: bool):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=200, num_key_value_heads=2, initializer_range=0.2, **shape)).eval()
    template = Words(MARK)
    how = Ensemble(candidates=2, horizon=2, decay=0.1)
    writer = Writer(template, True, CopeParams(horizon=2))
    learner = Learner(model, LossConfig(), OptimConfig(), TrainConfig(), 1.0)
    policy = RerankingPolicy(Drawn(template, []), learner, template, writer, how)  # pyright: ignore[reportArgumentType]
    contexts = [[10, MARK], [10, MARK, 20, 11, MARK], [10, MARK, 20, 11, MARK, 21, 12, MARK]]
    contexts = contexts if nested else [[30, 31, MARK], [32, MARK], [33, 34, 35, MARK]]
    executed, actions = ["go there", "take it"], ["put it down", "look"]
    (found,) = policy.scores([(contexts, executed, actions)])
    for action, score in zip(actions, found, strict=True):
        expected = 0.0
        for lag in range(3):
            before = contexts[2 - lag][:-1] + template.aside("3")
            for done in executed[2 - lag :]:
                before += template.encode(f"{done};")
            said = template.encode(f"{action};")
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([before + said])).logits[0].log_softmax(-1)
            own = sum(float(logits[len(before) - 1 + n, token]) for n, token in enumerate(said))
            expected += math.exp(-0.1 * lag) * own
        assert score == pytest.approx(expected, rel=1e-4)


def test_label_says_how():
    assert Ensemble().label() == "rerank(forecaster,n=8,K=2)"
    assert Ensemble(4, 1, 0.1).label() == "rerank(forecaster,n=4,K=1,m=0.1)"
