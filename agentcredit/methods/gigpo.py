"""GiGPO: beside the episode's advantage, one among actions taken from the same state (docs/methods/gigpo.md).

    ret_t = Σ_{k≥t} γ^{k−t} r_k
    A^S_t = (ret_t − mean) / (std + 1e-6)    over the turns of the group that stood in the same state
    A     = A^E + ω A^S

The public code finds "the same state" by the observation's text, which merges states that look alike (ALFWorld shows the
same receptacle with different objects in hand). Ours uses the environment's ``state_key`` unless told otherwise. To
reproduce the public code: ``baseline_over=step``, ``anchor=obs``, ``degenerate=public``, penalties ``before_norm``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group, Turn
from agentcredit.methods.base import Advantages, Kind, Paper, Params
from agentcredit.methods.outcome import Degenerate, Over, fit_normalised, label_of, relative, split_turns

Anchor = Literal["state_key", "obs"]


class GigpoParams(Params):
    """Parameters of GiGPO."""

    gamma: float = Field(
        default=0.95,
        ge=0,
        le=1,
        validation_alias=AliasChoices("gamma", "γ"),
        description="Discount of the rewards that follow a step.",
    )
    omega: float = Field(
        default=1.0,
        ge=0,
        validation_alias=AliasChoices("omega", "ω"),
        description="Weight of the step's part; 0 gives GRPO.",
    )
    std: bool = Field(
        default=True,
        description="Divide both parts by their deviation (ALFWorld's published setting); false: mean only (WebShop's).",
    )
    baseline_over: Over = Field(
        default="trajectory",
        validation_alias=AliasChoices("baseline_over", "over"),
        description="Statistic of the episode's part: over trajectories, or over steps as in public code.",
    )
    anchor: Anchor = Field(
        default="state_key",
        description="What makes two states the same: the environment's state key (the text where it gives none), or the text.",
    )
    similarity: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="With anchor=obs: texts at least this alike (difflib ratio) are one state, first come first served; 0: exact.",
    )
    degenerate: Degenerate = Field(
        default="zero",
        validation_alias=AliasChoices("degenerate", "singleton"),
        description="Episode part of a group without contrast (one score, or all equal): 0, or what public code gives.",
    )


class Gigpo:
    """Episode-relative plus step-relative advantage."""

    name: ClassVar[str] = "gigpo"
    kind: ClassVar[Kind] = "estimator"
    Params: ClassVar[type[GigpoParams]] = GigpoParams
    paper: ClassVar[Paper] = Paper(
        "Group-in-Group Policy Optimization for LLM Agent Training", "2505.10978", "NeurIPS 2025"
    )
    summary: ClassVar[str] = "GRPO plus a second comparison among actions that siblings took from the same state."
    neutral: ClassVar[Mapping[str, Any]] = {"omega": 0.0}

    def __init__(self, params: GigpoParams) -> None:
        self.params = params
        self._fit = partial(fit_normalised, std=params.std, degenerate=params.degenerate)

    def advantages(self, groups: Sequence[Group], metrics: dict[str, float], penalty: float = 0.0) -> Advantages:
        """One float64 array [T] per episode.

        ``penalty`` lowers an invalid turn's episode score and its finished discounted return; it is not discounted back
        to earlier turns (public code).
        """
        result: Advantages = []
        sizes: Counter[int] = Counter()
        for group in groups:
            episode_ET = relative(group, self._fit, self.params.baseline_over, penalty)
            labels_N = step_groups(
                [anchor_of(t, self.params.anchor) for e in group.episodes for t in e.turns], self.params.similarity
            )
            step_ET = split_turns(
                group, step_advantages(discounted_scores(group, self.params.gamma, penalty), labels_N, self.params.std)
            )
            result.append([a + self.params.omega * s for a, s in zip(episode_ET, step_ET, strict=True)])
            sizes.update(np.unique(labels_N, return_counts=True)[1].tolist())
        if sizes:
            n_groups = sizes.total()
            metrics["gigpo/step_group_size"] = sum(size * count for size, count in sizes.items()) / n_groups
            metrics["gigpo/singleton_share"] = sizes[1] / n_groups
        return result

    def normalise(self, scores_N: np.ndarray) -> np.ndarray:
        """The episode part's normalisation over the turns given."""
        return self._fit(scores_N).apply(scores_N)

    def label(self) -> str:
        """E.g. ``gigpo(over=trajectory,std,gamma=0.95,omega=1,anchor=state_key)``."""
        p = self.params
        extra = [f"gamma={p.gamma:g}", f"omega={p.omega:g}", f"anchor={p.anchor}"]
        if p.similarity:
            extra.append(f"similarity={p.similarity:g}")
        return label_of(self.name, p.baseline_over, p.std, p.degenerate, extra)


def anchor_of(turn: Turn, anchor: Anchor) -> str:
    """What stands for the state that a turn was taken in: its key (the text where it has none), or the text."""
    if anchor == "state_key" and turn.state_key is not None:
        return "key\0" + turn.state_key
    return turn.observation


def discounted_returns(rewards_T: Sequence[float], gamma: float) -> np.ndarray:
    """Σ_{k≥t} γ^{k−t} r_k for every turn t: float64 [T]."""
    returns_T = np.zeros(len(rewards_T))
    running = 0.0
    for t in reversed(range(len(rewards_T))):
        running = rewards_T[t] + gamma * running
        returns_T[t] = running
    return returns_T


def discounted_scores(group: Group, gamma: float, penalty: float) -> np.ndarray:
    """Discounted return of every turn of the group, less ``penalty`` on invalid ones (their own only): float64 [N]."""
    parts = []
    for episode in group.episodes:
        invalid_T = np.array([not turn.valid for turn in episode.turns], dtype=np.float64)
        parts.append(discounted_returns([turn.reward for turn in episode.turns], gamma) - penalty * invalid_T)
    return np.concatenate(parts) if parts else np.zeros(0)


def step_groups(anchors_N: Sequence[str], similarity: float = 0.0) -> np.ndarray:
    """Which rows stood in the same state: int labels [N] in the order of first appearance.

    With a ``similarity`` a row joins the first group whose *first* member is at least that alike, so that labels depend on
    the order of the rows (as in the public code).
    """
    labels_N = np.zeros(len(anchors_N), dtype=np.int64)
    known: dict[str, int] = {}
    representatives: list[str] = []
    for row, anchor in enumerate(anchors_N):
        label = known.get(anchor)
        if label is None:
            label = _first_alike(anchor, representatives, similarity) if similarity else len(representatives)
            if label == len(representatives):
                representatives.append(anchor)
            known[anchor] = label
        labels_N[row] = label
    return labels_N


def step_advantages(returns_N: np.ndarray, labels_N: np.ndarray, std: bool) -> np.ndarray:
    """Returns relative to those of the same label, float64 [N]; a row alone in its state gets 0."""
    advantages_N = np.zeros(len(returns_N))
    for label in np.unique(labels_N):
        rows = labels_N == label
        advantages_N[rows] = fit_normalised(returns_N[rows], std=std).apply(returns_N[rows])
    return advantages_N


def _first_alike(text: str, representatives: Sequence[str], similarity: float) -> int:
    for label, representative in enumerate(representatives):
        if SequenceMatcher(None, text, representative).ratio() >= similarity:
            return label
    return len(representatives)
