"""HGPO: compare actions among turns that share not only a state but the states before it (docs/methods/hgpo.md).

    level k = 1 … H+1     turns of the group whose last k states agree (own included); a cluster needs two
    item_k                (ret_t − mean) / (std + 1e-6) in the cluster          std of the population (ddof=0)
    A_t                   Σ_k w_k item_k / (Σ_k w_k + 1e-6)                     w_k = (k+1)^α, over the items that are not 0

A longer shared history makes a fairer but smaller comparison; the weights prefer the fairer one. With ``base_group`` the
episode's own advantage joins as level 0. A turn without a cluster gets 0 then, and nothing at all without it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group
from agentcredit.methods.base import Advantages, Kind, Paper, Params
from agentcredit.methods.gigpo import Anchor, anchor_of, discounted_scores
from agentcredit.methods.outcome import EPSILON, Degenerate, Over, fit_normalised, label_of, relative, split_turns


class HgpoParams(Params):
    """Parameters of HGPO."""

    history: int = Field(
        default=2,
        ge=0,
        validation_alias=AliasChoices("history", "H"),
        description="States before the current one that a comparison may ask for (published: 2 and 4).",
    )
    alpha: float = Field(
        default=1.0,
        ge=0,
        validation_alias=AliasChoices("alpha", "α"),
        description="Weight of level k is (k+1) to this power; 0 weighs all alike.",
    )
    gamma: float = Field(
        default=0.95,
        ge=0,
        le=1,
        validation_alias=AliasChoices("gamma", "γ"),
        description="Discount of the rewards that follow a step.",
    )
    std: bool = Field(default=True, description="Divide by the cluster's deviation; false: mean only.")
    base_group: bool = Field(
        default=False,
        description="Add the episode's advantage as level 0; without it a turn that shares no state gets nothing.",
    )
    baseline_over: Over = Field(
        default="trajectory",
        validation_alias=AliasChoices("baseline_over", "over"),
        description="With base_group: statistic over trajectories, or over steps as in public code.",
    )
    anchor: Anchor = Field(
        default="state_key",
        description="What makes two states the same: the environment's state key (the text where it gives none), or the text.",
    )
    degenerate: Degenerate = Field(
        default="zero",
        validation_alias=AliasChoices("degenerate", "singleton"),
        description="With base_group: advantage of a group without contrast, 0, or what public code gives.",
    )


class Hgpo:
    """Step-relative advantages over histories of growing length."""

    name: ClassVar[str] = "hgpo"
    kind: ClassVar[Kind] = "estimator"
    Params: ClassVar[type[HgpoParams]] = HgpoParams
    paper: ClassVar[Paper] = Paper(
        "Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic Tasks", "2602.22817", "ICLR 2026"
    )
    summary: ClassVar[str] = (
        "Compares actions among turns that share the last 1 … H+1 states, longer histories weighing more."
    )

    def __init__(self, params: HgpoParams) -> None:
        self.params = params
        self._fit = partial(fit_normalised, std=params.std, degenerate=params.degenerate)

    def advantages(self, groups: Sequence[Group], metrics: dict[str, float], penalty: float = 0.0) -> Advantages:
        """One float64 array [T] per episode. ``penalty`` lowers an invalid turn's own return, as in gigpo."""
        p = self.params
        result: Advantages = []
        compared = [0] * (p.history + 1)
        turns = 0
        for group in groups:
            levels_KN = [
                history_labels([[anchor_of(t, p.anchor) for t in e.turns] for e in group.episodes], k)
                for k in range(1, p.history + 2)
            ]
            base_N = np.concatenate(relative(group, self._fit, p.baseline_over, penalty)) if p.base_group else None
            returns_N = discounted_scores(group, p.gamma, penalty)
            values_N = hierarchical(returns_N, levels_KN, base_N, p.alpha, p.std)
            result.append(split_turns(group, values_N))
            turns += len(returns_N)
            for k, labels_N in enumerate(levels_KN):
                compared[k] += int(_in_company(labels_N).sum())
        if turns:
            metrics |= {f"hgpo/compared_at_level_{k + 1}": count / turns for k, count in enumerate(compared)}
        return result

    def normalise(self, scores_N: np.ndarray) -> np.ndarray:
        """The episode part's normalisation over the turns given."""
        return self._fit(scores_N).apply(scores_N)

    def label(self) -> str:
        """E.g. ``hgpo(std,H=2,alpha=1,gamma=0.95,anchor=state_key)``."""
        p = self.params
        extra = [f"H={p.history}", f"alpha={p.alpha:g}", f"gamma={p.gamma:g}", f"anchor={p.anchor}"]
        over = p.baseline_over if p.base_group else None
        return label_of(self.name, over, p.std, p.degenerate, extra)


def history_labels(anchors_ET: Sequence[Sequence[str]], length: int) -> np.ndarray:
    """Which turns share their last ``length`` states: int labels [N] over all turns; −1 before there are as many."""
    labels: list[int] = []
    known: dict[Hashable, int] = {}
    for anchors_T in anchors_ET:
        for t in range(len(anchors_T)):
            if t + 1 < length:
                labels.append(-1)
            else:
                labels.append(known.setdefault(tuple(anchors_T[t + 1 - length : t + 1]), len(known)))
    return np.array(labels, dtype=np.int64)


def hierarchical(
    returns_N: np.ndarray, levels_KN: Sequence[np.ndarray], base_N: np.ndarray | None, alpha: float, std: bool
) -> np.ndarray:
    """The weighted mean of each turn's items that are not 0, float64 [N].

    Args:
        returns_N: what each turn led to.
        levels_KN: cluster labels of levels 1, 2, …; −1 has no cluster.
        base_N: the item of level 0, or None.
        alpha: exponent of the weights.
        std: divide by the cluster's deviation (ddof=0) + 1e-6.
    """
    items = [] if base_N is None else [(1.0, base_N)]
    items += [((k + 1.0) ** alpha, _items(returns_N, labels_N, std)) for k, labels_N in enumerate(levels_KN, start=1)]
    total_N, weight_N = np.zeros(len(returns_N)), np.zeros(len(returns_N))
    for weight, item_N in items:
        total_N += weight * item_N
        weight_N += weight * (item_N != 0)
    return total_N / (weight_N + EPSILON)


def _items(returns_N: np.ndarray, labels_N: np.ndarray, std: bool) -> np.ndarray:
    items_N = np.zeros(len(returns_N))
    for label in np.unique(labels_N[_in_company(labels_N)]):
        rows = labels_N == label
        values = returns_N[rows]
        if np.all(values == values[0]):
            continue  # tested before dividing: the float mean of equal returns can be one ulp off
        items_N[rows] = (values - values.mean()) / (values.std() + EPSILON if std else 1.0)
    return items_N


def _in_company(labels_N: np.ndarray) -> np.ndarray:
    """Whether a turn shares its label with another: bool [N]."""
    labels, inverse, counts = np.unique(labels_N, return_inverse=True, return_counts=True)
    return ((counts > 1) & (labels >= 0))[inverse]
