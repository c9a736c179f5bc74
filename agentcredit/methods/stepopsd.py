"""StepOPSD: a teacher that knows how a sibling succeeded moves credit within each step of a failure (docs/methods/stepopsd.md).

    δ = log π(token | context, actions of a successful sibling) − log π(token | context)
    w = clip(2σ(sign(A) δ), 1 − α, 1 + α), scaled to mean 1 over the step's tokens, and clipped again
    A' = (1 − λ) A + λ w A

Successes, and failures without a successful sibling, are left alone. A reconstruction: the paper's exact form of the
step's budget was not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group
from agentcredit.methods.base import Kind, Paper, Params, TokenAdvantages, Tools
from agentcredit.methods.rlsd import gap_metrics, peer_notes
from agentcredit.methods.teacher import Notes, action_tokens, gaps


class StepopsdParams(Params):
    """Parameters of StepOPSD."""

    lambda_: float = Field(
        default=0.5,
        ge=0,
        le=1,
        validation_alias=AliasChoices("lambda", "λ", "lambda_", "lambda_mix"),
        description="Share of the advantage that the teacher re-weighs; 0 gives the base (published: task-dependent).",
    )
    alpha: float = Field(
        default=0.2,
        ge=0,
        lt=1,
        validation_alias=AliasChoices("alpha", "α", "alpha_clip"),
        description="Half the width of the band that weights are clipped to (published: small values stabilise).",
    )
    token_scope: Literal["action", "response"] = Field(
        default="action",
        description="Tokens that are re-weighed: those of the action (published for ALFWorld), or all.",
    )
    budget: bool = Field(
        default=True, description="Keep the mean weight of each step at 1, so that its credit only moves within."
    )


class Stepopsd:
    """Token weights within the steps of failures, from a self-teacher that has seen a success."""

    name: ClassVar[str] = "stepopsd"
    kind: ClassVar[Kind] = "refiner"
    Params: ClassVar[type[StepopsdParams]] = StepopsdParams
    paper: ClassVar[Paper] = Paper(
        "StepOPSD: Step-Aware Online Preference Distillation for Agent Reinforcement Learning", "2605.27140", "2026"
    )
    summary: ClassVar[str] = (
        "Moves the blame within each step of a failure by what a teacher that knows a success prefers."
    )
    neutral: ClassVar[Mapping[str, Any]] = {"lambda": 0.0}
    clashes: ClassVar[Mapping[str, str]] = {
        "ahead": "stepopsd keeps the credit of a step by weights of mean 1, which holds where the tokens of a step share one "
        "advantage, and ahead gives them different ones; keep one of them.",
    }

    def __init__(self, params: StepopsdParams) -> None:
        self.params = params

    def refine(
        self, groups: Sequence[Group], advantages: TokenAdvantages, tools: Tools, metrics: dict[str, float]
    ) -> TokenAdvantages:
        """The advantages of failures re-weighed; those of successes as they were."""
        p = self.params
        if p.lambda_ == 0:
            return advantages
        notes = _of_failures(groups, peer_notes(groups, advantages))
        delta = gaps(groups, notes, tools, self.name)
        metrics |= gap_metrics("stepopsd", groups, notes, delta)
        result: TokenAdvantages = []
        for group, n_ET, a_ETN, d_ETN in zip(groups, notes, advantages, delta, strict=True):
            result.append([])
            for episode, n_T, a_TN, d_TN in zip(group.episodes, n_ET, a_ETN, d_ETN, strict=True):
                refined = []
                for turn, note, a_N, d_N in zip(episode.turns, n_T, a_TN, d_TN, strict=True):
                    if note is None or tools.template is None:
                        refined.append(a_N)
                        continue
                    scope_N = (
                        action_tokens(tools.template, turn)
                        if p.token_scope == "action"
                        else np.ones(len(a_N), dtype=bool)
                    )
                    weight_N = step_weights(a_N, np.where(scope_N, d_N, 0.0), p.alpha, p.budget)
                    refined.append(a_N * ((1 - p.lambda_) + p.lambda_ * weight_N))
                result[-1].append(tuple(refined))
        return result

    def label(self) -> str:
        """E.g. ``stepopsd(lambda=0.5,alpha=0.2,action)``."""
        p = self.params
        return f"stepopsd(lambda={p.lambda_:g},alpha={p.alpha:g},{p.token_scope}{'' if p.budget else ',no-budget'})"


def step_weights(advantage_N: np.ndarray, delta_N: np.ndarray, alpha: float, budget: bool) -> np.ndarray:
    """Weights of one step's tokens in [1 − α, 1 + α], float64 [n]; with ``budget`` their mean is 1 up to the last clipping."""
    if not len(delta_N):
        return np.zeros(0)
    weight_N = np.clip(2.0 / (1.0 + np.exp(-np.sign(advantage_N) * delta_N)), 1 - alpha, 1 + alpha)
    return np.clip(weight_N / weight_N.mean(), 1 - alpha, 1 + alpha) if budget else weight_N


def _of_failures(groups: Sequence[Group], notes: Notes) -> Notes:
    return [
        [[None] * len(n_T) if episode.success else list(n_T) for episode, n_T in zip(group.episodes, n_ET, strict=True)]
        for group, n_ET in zip(groups, notes, strict=True)
    ]
