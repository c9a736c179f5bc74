"""``methods check``: every built-in method passes, and each invariant fails on a method that was broken on purpose."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from agentcredit.methods import check as checks
from agentcredit.methods.check import INVARIANTS, check
from agentcredit.methods.grpo import Grpo, GrpoParams
from agentcredit.methods.proas import Proas
from agentcredit.methods.registry import get, names


@pytest.mark.parametrize("name", names())
def test_built_in_methods_pass(name: str):
    failed = [f"{v.invariant}: {v.detail}" for v in check(get(name)) if not v.passed]
    assert not failed


class Shaping:
    """A shaper that leaves everything as it is, to be broken."""

    name, kind, Params, paper, summary = "broken", "shaper", GrpoParams, Grpo.paper, "Broken on purpose."
    neutral: ClassVar[dict[str, Any]] = {"degenerate": "zero"}
    conserves = "episode"

    def __init__(self, params: GrpoParams) -> None:
        self.params = params

    def label(self) -> str:
        return "broken()"

    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [[a_T.copy() for a_T in a_ET] for a_ET in advantages]


def test_nothing_is_found_where_nothing_is_wrong():
    assert all(v.passed for v in check(Shaping))


class NotFinite(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [[a_T / 0 if e == 1 else a_T for e, a_T in enumerate(a_ET)] for a_ET in advantages]


class NotFiniteMetric(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        metrics["broken/mean"] = float("nan")
        return advantages


class LearnsFromNoContrast(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [[a_T + 0.1 for a_T in a_ET] for a_ET in advantages]


class FailsOnNothing(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [advantages[0], *advantages[1:]]


class FirstSibling(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [[a_T * (2 if e == 0 else 1) for e, a_T in enumerate(a_ET)] for a_ET in advantages]


class FirstGroup(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [[a_T * (2 if g == 0 else 1) for a_T in a_ET] for g, a_ET in enumerate(advantages)]


class ReadsNames(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [
            [
                a_T * np.array([1.0 + (t.state_key or "").startswith("s") for t in e.turns])
                for e, a_T in zip(g.episodes, a_ET, strict=True)
            ]
            for g, a_ET in zip(groups, advantages, strict=True)
        ]


class TurnsSigns(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [[-a_T for a_T in a_ET] for a_ET in advantages]


class NotItsBase(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [[a_T * (1 + 1e-12) for a_T in a_ET] for a_ET in advantages]


class LosesCredit(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        return [[a_T * (np.arange(len(a_T)) > 0) for a_T in a_ET] for a_ET in advantages]


class LosesBlame(LosesCredit):
    conserves = "blame"


class Restless(Shaping):
    calls = 0

    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        Restless.calls += 1
        return [[a_T * Restless.calls for a_T in a_ET] for a_ET in advantages]


class Scribbles(Shaping):
    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        for group in groups:
            for episode in group.episodes:
                for turn in episode.turns:
                    turn.response_logprobs[:] = 7.0
        return advantages


class ForgetsHalf(Shaping):
    def __init__(self, params: GrpoParams) -> None:
        super().__init__(params)
        self.seen = 0

    def shape(self, groups: Any, advantages: Any, tools: Any, metrics: Any) -> Any:
        self.seen += len(groups)
        return [[a_T * (1 + self.seen) for a_T in a_ET] for a_ET in advantages]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state["seen"] // 2


@pytest.mark.parametrize(
    ("broken", "invariant", "words"),
    [
        (NotFinite, "one finite number a token", "not finite"),
        (NotFiniteMetric, "one finite number a token", "broken/mean"),
        (LearnsFromNoContrast, "degenerate groups", "failed alike"),
        (FailsOnNothing, "degenerate groups", "IndexError"),
        (FirstSibling, "order of groups and siblings", "siblings in another order"),
        (FirstGroup, "order of groups and siblings", "groups in another order"),
        (ReadsNames, "names of states", "other names"),
        (TurnsSigns, "sign of the base", "became"),
        (NotItsBase, "reduction to the base", "differ from grpo's"),
        (LosesCredit, "conservation", "became"),
        (LosesBlame, "conservation", "became"),
        (Restless, "episodes left alone", "again"),
        (Scribbles, "episodes left alone", "log-probabilities"),
        (ForgetsHalf, "state through JSON", "not the one that was saved"),
    ],
)
def test_each_invariant_is_seen_to_fail(broken: Any, invariant: str, words: str):
    with np.errstate(all="ignore"):
        verdict = next(v for v in check(broken) if v.invariant == invariant)
    assert not verdict.passed
    assert words in verdict.detail


def test_every_invariant_has_been_broken():
    tried = {"one finite number a token", "degenerate groups", "order of groups and siblings", "names of states"}
    tried |= {"sign of the base", "reduction to the base", "conservation", "episodes left alone", "state through JSON"}
    assert set(INVARIANTS) == tried


def test_what_does_not_apply_says_why():
    verdicts = {v.invariant: v for v in check(Grpo)}
    assert not verdicts["sign of the base"].applies
    assert verdicts["sign of the base"].detail == "an estimator has no base"
    proas = {v.invariant: v for v in check(Proas)}
    assert all(v.applies for v in proas.values())
    assert checks.SEEDS >= 3
