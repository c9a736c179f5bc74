"""RLSD: a teacher that knows a success re-weighs each token within a narrow band (docs/methods/rlsd.md).

    δ = log π(token | context, note) − log π(token | context)
    w = clip(exp(sign(A) δ), 1 − ε, 1 + ε)        A' = A ((1 − λ) + λ w)        λ may fall to 0 over the first steps

The public code's note is a text of skills for the task; ours, where there is none, is the list of actions of a successful
sibling (as in stepopsd). Without one δ is 0 and A stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group
from agentcredit.methods.base import Kind, Paper, Params, TokenAdvantages, Tools
from agentcredit.methods.teacher import Notes, action_list, gaps, success_of_another


class RlsdParams(Params):
    """Parameters of RLSD."""

    lambda_: float = Field(
        default=0.5,
        ge=0,
        le=1,
        validation_alias=AliasChoices("lambda", "λ", "lambda_"),
        description="Share of the advantage that the teacher re-weighs; 0 gives the base.",
    )
    epsilon: float = Field(
        default=0.2,
        ge=0,
        lt=1,
        validation_alias=AliasChoices("epsilon", "ε", "eps_w"),
        description="Half the width of the band that weights are clipped to.",
    )
    warmdown: int = Field(
        default=0,
        ge=0,
        validation_alias=AliasChoices("warmdown", "warmdown_steps"),
        description="Steps over which λ falls linearly to 0 (published: 50, or 100 on ALFWorld 7B); 0: it stays.",
    )


class Rlsd:
    """Token weights from a self-teacher that has seen a success."""

    name: ClassVar[str] = "rlsd"
    kind: ClassVar[Kind] = "refiner"
    Params: ClassVar[type[RlsdParams]] = RlsdParams
    paper: ClassVar[Paper] = Paper("Self-Distilled RLVR", "2604.03128", "2026")
    summary: ClassVar[str] = (
        "Weighs tokens by how much likelier a teacher that knows a success finds them, within a band."
    )
    neutral: ClassVar[Mapping[str, Any]] = {"lambda": 0.0}
    clashes: ClassVar[Mapping[str, str]] = {
        "stepopsd": "both weigh the same tokens by the same teacher with the same note, so that its opinion counts twice; "
        "keep one of them.",
        "alignopsd": "alignopsd's weights of turns are means of the log-ratios that rlsd weighs tokens by, so that the "
        "teacher's opinion of a turn counts twice; keep one of them, or take alignopsd+stepopsd, which moves credit within "
        "turns only.",
        "ahead": "both hold an advantage within a band around the base's by a self-teacher's opinion, and together they "
        "keep neither band; keep one of them.",
    }

    def __init__(self, params: RlsdParams) -> None:
        self.params = params

    def refine(
        self, groups: Sequence[Group], advantages: TokenAdvantages, tools: Tools, metrics: dict[str, float]
    ) -> TokenAdvantages:
        """The advantages times 1 − λ + λ w; where they are 0, or no sibling succeeded, as they were."""
        lam = faded(self.params.lambda_, tools.step, self.params.warmdown)
        if lam == 0:
            return advantages
        notes = peer_notes(groups, advantages)
        delta = gaps(groups, notes, tools, self.name)
        metrics |= {"rlsd/lambda": lam, **gap_metrics("rlsd", groups, notes, delta)}
        return [
            [
                tuple(band(a_N, d_N, lam, self.params.epsilon) for a_N, d_N in zip(a_TN, d_TN, strict=True))
                for a_TN, d_TN in zip(a_ETN, d_ETN, strict=True)
            ]
            for a_ETN, d_ETN in zip(advantages, delta, strict=True)
        ]

    def label(self) -> str:
        """E.g. ``rlsd(lambda=0.5,eps=0.2)``."""
        p = self.params
        fading = f",warmdown={p.warmdown}" if p.warmdown else ""
        return f"rlsd(lambda={p.lambda_:g},eps={p.epsilon:g}{fading})"


def band(advantage_N: np.ndarray, delta_N: np.ndarray, lam: float, epsilon: float) -> np.ndarray:
    """A ((1 − λ) + λ clip(exp(sign(A) δ), 1 ± ε)), float64 [n]."""
    weight_N = np.clip(np.exp(np.sign(advantage_N) * delta_N), 1 - epsilon, 1 + epsilon)
    return advantage_N * ((1 - lam) + lam * weight_N)


def faded(lam: float, step: int, steps: int) -> float:
    """λ at a step (from 1): linear to 0 after ``steps``; constant where that is 0."""
    return lam * max(0.0, 1.0 - (step - 1) / steps) if steps else lam


def peer_notes(groups: Sequence[Group], advantages: TokenAdvantages) -> Notes:
    """At each turn with an advantage the actions of a successful sibling; None where there is no such sibling."""
    notes: list[list[list[str | None]]] = []
    for group, a_ETN in zip(groups, advantages, strict=True):
        notes.append([])
        for episode, a_TN in zip(group.episodes, a_ETN, strict=True):
            peer = success_of_another(group, episode)
            text = f"Another attempt at this task succeeded by: {action_list(peer)}" if peer else None
            notes[-1].append([text if np.any(a_N) else None for a_N in a_TN])
    return notes


def gap_metrics(name: str, groups: Sequence[Group], notes: Notes, delta: TokenAdvantages) -> dict[str, float]:
    """Mean δ of the tokens that were told something, apart for successes and failures, and the share of turns told."""
    told: dict[bool, list[np.ndarray]] = {True: [], False: []}
    n_turns = 0
    for group, n_ET, d_ETN in zip(groups, notes, delta, strict=True):
        for episode, n_T, d_TN in zip(group.episodes, n_ET, d_ETN, strict=True):
            n_turns += len(n_T)
            told[episode.success] += [d_N for note, d_N in zip(n_T, d_TN, strict=True) if note is not None]
    metrics = {
        f"{name}/delta_mean_{'success' if won else 'fail'}": float(np.concatenate(parts).mean())
        for won, parts in told.items()
        if parts and sum(map(len, parts))
    }
    return metrics | ({f"{name}/told_share": sum(map(len, told.values())) / n_turns} if n_turns else {})
