"""RWML: what is asked and rewarded, the phase, easy triples, and what a resume needs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.errors import UsageError
from agentcredit.methods.registry import build
from agentcredit.methods.rwml import Rwml, RwmlParams, foreseen, question, rouge_l, threshold
from agentcredit.policies.base import Response
from agentcredit.training.packing import materialise
from agentcredit.training.rows import build_rows
from tests.methods.build import Words, episode, group, task, tools, turn


def test_rouge_by_hand():
    # Common subsequence "the … sat" of 2 words; 3 and 4 words: F1 = 2·2/7.
    assert rouge_l("the cat sat", "The dog sat down.") == pytest.approx(4 / 7)
    assert rouge_l("a b c d", "b d a c") == pytest.approx(0.5)  # "b d" or "a c"
    assert rouge_l("You see: nothing!", "you see nothing") == 1.0
    assert rouge_l("", "you see") == rouge_l("...", "you see") == 0.0


def test_the_threshold_rewards_the_share_asked_for():
    distances = np.array([0.1, 0.4, 0.2, 0.9])
    assert threshold(distances, 0.5) == pytest.approx(0.3)  # halfway from the second to the third
    assert (distances < threshold(distances, 0.25)).sum() == 1
    ties = np.array([0.0, 0.0, 0.0, 0.8])
    assert (ties < threshold(ties, 0.5)).sum() == 3  # a tie is right as a whole or not at all
    assert threshold(np.array([0.2, 1.0, 1.0, 1.0]), 0.5) == pytest.approx(0.6)
    assert threshold(np.array([0.7, 0.7]), 0.5) is None  # nothing to tell apart


def test_the_prediction_is_what_follows_the_reasoning():
    assert foreseen("<think> it opens </think>\nYou open\n the fridge.") == "You open the fridge."
    assert foreseen("You open the fridge.") == "You open the fridge."
    assert foreseen("<think> it may open, or it may") == ""
    assert foreseen("<think> a </think> <think> b </think> c") == "c"


class Model:
    """Predicts from a list, and finds texts alike where their first words are."""

    def __init__(self, *said: str) -> None:
        self.template, self.said = Words(), said
        self.prompts: list[str] = []
        self.keys: list[tuple[str | int, ...]] = []
        self.limit: int | None = None

    def generate(self, prompts: Any, keys: Any, max_new_tokens: int | None = None) -> list[Response]:
        self.prompts += [self.template.read(prompt) for prompt in prompts]
        self.keys += keys
        self.limit = max_new_tokens
        answers = []
        for k in range(len(prompts)):
            ids = (*self.template.encode(self.said[k % len(self.said)]), self.template.end_id)
            logprobs = -0.5 - np.arange(len(ids), dtype=np.float32)
            answers.append(Response("", ids, logprobs, finished=True))
        return answers

    def embed(self, texts: Any) -> np.ndarray:
        return np.array([[float(text.split()[:1] == [word]) for word in ("dark", "light")] for text in texts])

    def tools(self, step: int = 1, seed: int = 0) -> Any:
        given = tools(template=self.template, generate=self.generate, embed=self.embed, terse=True)
        return replace(given, step=step, rng=np.random.default_rng(seed))


def scene(template: Words, *answers: str, success: bool = True) -> Any:
    """A group whose first episode says one word at every turn, to these answers of the environment."""
    turns = [
        replace(
            turn(f"s{n}", f"s{n + 1}", action=f"do{n}", observation=f"see{n}", after=answer),
            prompt_ids=(*template.encode(f"see{n}"), 1),
            response_ids=tuple(template.encode(f"say{n}")),
            reward=float(success and n == len(answers) - 1),
        )
        for n, answer in enumerate(answers)
    ]
    return group(episode(turns, success), episode([replace(turns[0], next_observation="", reward=0.0)], False))


def made(**params: Any) -> Any:
    chosen = {"samples": 2, "calibrate": 0.0, "tau": 0.5, "phase_steps": 0, **params}
    return build(MethodConfig(name="rwml", params=chosen, invalid_mode="off"))


def test_the_rows_by_hand():
    model = Model("dark hall", "light <think>")
    siblings = scene(model.template, "dark cellar", "light garden")
    got = made(**{"lambda": 0.3}, max_tokens=7).credit([siblings], model.tools())
    # Asked after the context of the action, without its own thought; twice a turn, each under a key of its own.
    assert model.prompts == ["see0 after do0 1"] * 2 + ["see0 1 say0 see1 after do1 1"] * 2
    assert [key[-2:] for key in model.keys] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert model.limit == 7
    whole = materialise(build_rows([siblings], got))[2:]
    assert [model.template.read(row.ids) for row in whole] == [
        "see0 after do0 1 dark hall <end>",
        "see0 after do0 1 light <think> <end>",
        "see0 1 say0 see1 after do1 1 dark hall <end>",
        "see0 1 say0 see1 after do1 1 light <think> <end>",
    ]
    # "dark" is right of the cellar. The second prediction never closes its reasoning and so is empty, wrong of both.
    # Rewards 1, 0: mean ½, deviation √½ (of a sample), so ±½/√½ = ±0.7071; rewards 0, 0: nothing.
    signs = [1, -1, 0, 0]
    for row, sign in zip(got.extra_rows, signs, strict=True):
        assert row.advantage[row.sampled] == pytest.approx(sign * np.sqrt(0.5), abs=1e-5)
        assert not row.advantage[~row.sampled].any()
        assert row.rollout_logprobs[row.sampled].tolist() == [-0.5, -1.5, -2.5]
        assert (row.part, row.weight) == ("rwml", 0.3)
    assert got.metrics["rwml/reward"] == 0.25
    assert got.metrics["rwml/contrast_share"] == 0.5
    assert got.metrics["rwml/triples"] == 2  # the turn without an answer is none


def test_the_policy_gradient_rests_in_the_phase_and_comes_after_it():
    model = Model("dark", "light")
    siblings = scene(model.template, "dark")
    method = made(phase_steps=2)
    base = build(MethodConfig(name="grpo", invalid_mode="off")).credit([siblings], tools())
    wanted = [[a.tolist() for a in credit.advantage_TN] for credit in base.credits[0]]
    assert any(value for a_TN in wanted for a_N in a_TN for value in a_N)
    for step, phase in ((1, True), (2, True), (3, False)):
        got = method.credit([siblings], model.tools(step))
        values = [[a.tolist() for a in credit.advantage_TN] for credit in got.credits[0]]
        assert values == ([[[0.0] for _ in a_TN] for a_TN in wanted] if phase else wanted)
        assert len(got.extra_rows) == (2 if phase else 0)
        assert got.metrics["rwml/phase"] == float(phase)
    joint = made(phase_steps=0).credit([siblings], model.tools(3))
    assert [[a.tolist() for a in credit.advantage_TN] for credit in joint.credits[0]] == wanted
    assert len(joint.extra_rows) == 2


def test_nothing_is_asked_at_lambda_0():
    model = Model("dark")
    got = made(**{"lambda": 0.0}, phase_steps=5).credit([scene(model.template, "dark")], model.tools())
    assert (model.prompts, got.extra_rows) == ([], [])


@pytest.mark.parametrize(("keep", "again"), [(0.0, 0), (1.0, 2)])
def test_easy_triples_are_left_out_until_they_are_missed(keep: float, again: int):
    model = Model("dark")
    siblings = scene(model.template, "dark")
    method = made(easy_keep=keep)
    first = method.credit([siblings], model.tools(1))
    assert first.metrics["rwml/all_right_share"] == 1
    # The same look, action and answer in another task is the same triple.
    elsewhere = replace(siblings, episodes=tuple(replace(e, task=task("t9")) for e in siblings.episodes))
    second = method.credit([elsewhere], model.tools(2))
    assert second.metrics["rwml/easy_share"] == 1
    assert len(second.extra_rows) == again
    assert len(method.credit([scene(model.template, "light")], model.tools(3)).extra_rows) == 2  # another answer
    if keep:
        model.said = ("dark", "light")
        method.credit([siblings], model.tools(4))
        assert method.credit([siblings], model.tools(5)).metrics["rwml/easy_share"] == 0


def test_turns_are_drawn_by_episode_and_step():
    model = Model("dark", "light")
    long = scene(model.template, *["dark"] * 9)
    kept = [made(max_triples=3).credit([long], model.tools(1, seed)).metrics["rwml/triples"] for seed in range(2)]
    assert kept == [3, 3]
    turns = [key[3] for key in model.keys[::2]]
    assert turns[:3] == sorted(turns[:3])
    assert turns[:3] != turns[3:]
    assert made(max_triples=0).credit([long], model.tools()).metrics["rwml/triples"] == 9


def test_tau_is_set_once_and_a_resume_goes_on_alike():
    model = Model("dark", "light")
    scenes = [scene(model.template, "dark", "light"), scene(model.template, "light", "dark", "bright")]
    whole, resumed = made(calibrate=0.5), made(calibrate=0.5)
    first = whole.credit([scenes[0]], model.tools(1))
    # Half of the predictions are at distance 0, half at 1.
    assert first.metrics["rwml/tau"] == 0.5
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert whole.state_dict()["rwml"] == {"tau": 0.5, "easy": []}
    want, got = (method.credit([scenes[1]], model.tools(2, 7)) for method in (whole, resumed))
    assert [row.ids.tolist() for row in got.extra_rows] == [row.ids.tolist() for row in want.extra_rows]
    assert [row.advantage.tolist() for row in got.extra_rows] == [row.advantage.tolist() for row in want.extra_rows]
    assert resumed.state_dict() == whole.state_dict()


def test_rouge_needs_no_encoder():
    model = Model("dark hall", "light hall")
    given = replace(model.tools(), embed=None)
    siblings = scene(model.template, "dark hall")
    got = made(metric="rouge", tau=0.4).credit([siblings], given)
    assert got.metrics["rwml/distance"] == pytest.approx(0.25)  # 0, and 1 − 2·1/4
    with pytest.raises(UsageError, match="sentence encoder"):
        made().credit([siblings], given)


def test_label_and_question():
    assert Rwml(RwmlParams()).label() == "rwml(lambda=1,phase=10,n=4,embed)"
    label = Rwml(RwmlParams(phase_steps=0, metric="rouge", calibrate=0.0, tau=0.4)).label()
    assert label == "rwml(lambda=1,phase=0,n=4,rouge,tau=0.4,calibrate=0)"
    assert question("go east", terse=True) == "after go east"
    assert "your action is: go east\n" in question("go east", terse=False)
