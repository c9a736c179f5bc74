"""SDAR: beside the base's policy gradient, a gated pull towards what a self-teacher prefers (docs/methods/sdar.md).

    δ = log π(token | context, note) − log π(token | context)
    L = L_base + λ · mean over sampled tokens of  σ(β δ) · (log π_T − log π_θ)        gate and teacher without gradient

Its gradient is that of cross-entropy on the sampled tokens with weight λ σ(β δ) / N, which is how it is added here. Tokens
that were told nothing have no weight. The public code's note is a text of skills; ours is a successful sibling's actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group
from agentcredit.methods.base import Assignment, Credit, Kind, Paper, Params, Tools
from agentcredit.methods.rlsd import gap_metrics
from agentcredit.methods.teacher import Notes, action_list, gaps, success_of_another


class SdarParams(Params):
    """Parameters of SDAR."""

    lambda_: float = Field(
        default=0.01,
        ge=0,
        validation_alias=AliasChoices("lambda", "λ", "lambda_"),
        description="Weight of the distillation loss (published: 0.01); 0 gives the base.",
    )
    beta: float = Field(
        default=5.0,
        gt=0,
        validation_alias=AliasChoices("beta", "β"),
        description="Sharpness of the gate (published: 5): how fast it opens for tokens that the teacher prefers.",
    )


class Sdar:
    """Gated self-distillation as an auxiliary loss."""

    name: ClassVar[str] = "sdar"
    kind: ClassVar[Kind] = "auxiliary"
    Params: ClassVar[type[SdarParams]] = SdarParams
    paper: ClassVar[Paper] = Paper("Self-Distilled Agentic Reinforcement Learning", "2605.15155", "2026")
    summary: ClassVar[str] = "Adds a gated pull towards the tokens that a self-teacher which knows a success prefers."
    neutral: ClassVar[Mapping[str, Any]] = {"lambda": 0.0}

    def __init__(self, params: SdarParams) -> None:
        self.params = params

    def extend(self, groups: Sequence[Group], assignment: Assignment, tools: Tools) -> Assignment:
        """Adds cross-entropy weights λ σ(βδ)/N, N all sampled tokens of the batch, to the tokens that were told something."""
        if self.params.lambda_ == 0:
            return assignment
        notes = _notes(groups)
        delta = gaps(groups, notes, tools, self.name)
        n_tokens = sum(turn.n_tokens for group in groups for episode in group.episodes for turn in episode.turns)
        gates: list[np.ndarray] = []
        credits: list[list[Credit]] = []
        for own, n_ET, d_ETN in zip(assignment.credits, notes, delta, strict=True):
            credits.append([])
            for credit, n_T, d_TN in zip(own, n_ET, d_ETN, strict=True):
                gate_TN = [
                    gate(d_N, self.params.beta) if note is not None else np.zeros(len(d_N))
                    for note, d_N in zip(n_T, d_TN, strict=True)
                ]
                gates += [g_N for note, g_N in zip(n_T, gate_TN, strict=True) if note is not None]
                credits[-1].append(_added(credit, [self.params.lambda_ * g_N / max(1, n_tokens) for g_N in gate_TN]))
        metrics = assignment.metrics | gap_metrics("sdar", groups, notes, delta)
        if gates and sum(map(len, gates)):
            all_N = np.concatenate(gates)
            metrics |= {"sdar/gate_mean": float(all_N.mean()), "sdar/gate_open": float(np.mean(all_N > 0.5))}
        return Assignment(credits, assignment.extra_rows, metrics)

    def label(self) -> str:
        """E.g. ``sdar(lambda=0.01,beta=5)``."""
        return f"sdar(lambda={self.params.lambda_:g},beta={self.params.beta:g})"


def gate(delta_N: np.ndarray, beta: float) -> np.ndarray:
    """σ(β δ), float64 [n]."""
    return 1.0 / (1.0 + np.exp(-beta * delta_N))


def _notes(groups: Sequence[Group]) -> Notes:
    """Every episode with a successful sibling is told that one's actions at every turn."""
    notes: list[list[list[str | None]]] = []
    for group in groups:
        notes.append([])
        for episode in group.episodes:
            peer = success_of_another(group, episode)
            text = f"Another attempt at this task succeeded by: {action_list(peer)}" if peer else None
            notes[-1].append([text] * len(episode.turns))
    return notes


def _added(credit: Credit, weights_TN: Sequence[np.ndarray]) -> Credit:
    known = credit.ce_response_TN or tuple(np.zeros(len(weight)) for weight in weights_TN)
    return replace(credit, ce_response_TN=tuple(a + b for a, b in zip(known, weights_TN, strict=True)))
