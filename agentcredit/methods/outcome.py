"""Group-relative scores: the statistic that grpo, rloo and gigpo subtract and divide by (docs/methods/grpo.md).

A score is the return R of an episode; with a ``before_norm`` penalty it is R − c on invalid turns, so the turns of one
episode need not share it. The statistic is taken over *trajectories* (each sibling once) or over *steps* (each turn once,
so that long episodes weigh more: what the public verl-agent code does by default).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentcredit.episodes import Episode, Group

Over = Literal["trajectory", "step"]
Degenerate = Literal["zero", "public"]

EPSILON = 1e-6
"""Added to the standard deviation, outside the root (verl, verl-agent, AlignOPSD)."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is subtracted from a score, and what the difference is multiplied by."""

    mean: float
    scale: float

    def apply(self, scores: np.ndarray) -> np.ndarray:
        """Advantages of ``scores``, float64, same shape."""
        return (scores - self.mean) * self.scale


Fit = Callable[[np.ndarray], Baseline]
"""From the scores that enter the statistic [S] to the baseline."""


def fit_normalised(scores_S: np.ndarray, *, std: bool, degenerate: Degenerate = "zero") -> Baseline:
    """Mean and, with ``std``, the unbiased standard deviation (ddof=1) of GRPO.

    Without contrast the public code gives its inputs back: a lone score is its own advantage (mean 0, std 1), and equal
    scores divide by 1e-6. Ours (``degenerate="zero"``) gives 0: a lone rollout says nothing about its actions. Equality is
    tested before dividing, because the float mean of equal scores can be one ulp off.
    """
    if len(scores_S) == 0:
        return Baseline(0.0, 0.0)
    if len(scores_S) == 1:
        if degenerate == "zero":
            return Baseline(float(scores_S[0]), 0.0)
        return Baseline(0.0, 1.0 / (1.0 + EPSILON) if std else 1.0)
    if np.all(scores_S == scores_S[0]):
        mean, deviation = float(scores_S[0]), 0.0
    else:
        mean, deviation = float(np.mean(scores_S)), float(np.std(scores_S, ddof=1))
    if not std:
        return Baseline(mean, 1.0)
    if deviation == 0.0 and degenerate == "zero":
        return Baseline(mean, 0.0)
    return Baseline(mean, 1.0 / (deviation + EPSILON))


def fit_leave_one_out(scores_S: np.ndarray, *, degenerate: Degenerate = "zero") -> Baseline:
    """RLOO's baseline: n/(n−1)·(score − mean) is the score minus the mean of the *other* n−1 scores."""
    n = len(scores_S)
    if n <= 1:
        if n == 1 and degenerate == "public":
            return Baseline(0.0, 1.0)
        return Baseline(float(scores_S[0]) if n else 0.0, 0.0)
    mean = float(scores_S[0]) if np.all(scores_S == scores_S[0]) else float(np.mean(scores_S))
    return Baseline(mean, n / (n - 1))


def turn_scores(episode: Episode, penalty: float = 0.0) -> np.ndarray:
    """The episode's return on each of its turns, less ``penalty`` on invalid ones: float64 [T]."""
    invalid_T = np.array([not turn.valid for turn in episode.turns], dtype=np.float64)
    return episode.ret - penalty * invalid_T


def relative(group: Group, fit: Fit, over: Over, penalty: float = 0.0) -> list[np.ndarray]:
    """Each turn's score relative to the group's statistic: one float64 array [T] per episode.

    Over trajectories each episode enters once, by the score of its first turn, as in verl-agent: a ``before_norm``
    penalty on a later turn then lowers that turn but not the baseline. Without a penalty it is the return.
    """
    scores_ET = [turn_scores(episode, penalty) for episode in group.episodes]
    if over == "step":
        statistic_S = np.concatenate(scores_ET) if scores_ET else np.zeros(0)
    else:
        pairs = zip(group.episodes, scores_ET, strict=True)
        statistic_S = np.array([scores_T[0] if len(scores_T) else episode.ret for episode, scores_T in pairs])
    baseline = fit(statistic_S)
    return [baseline.apply(scores_T) for scores_T in scores_ET]


def split_turns(group: Group, values_N: np.ndarray) -> list[np.ndarray]:
    """Values of all turns of a group, in order, cut into one array [T] per episode."""
    ends = np.cumsum([len(episode.turns) for episode in group.episodes])
    return np.split(values_N, ends[:-1]) if len(ends) else []


def label_of(name: str, over: Over | None, std: bool | None, degenerate: Degenerate, extra: Sequence[str] = ()) -> str:
    """An estimator's label, e.g. ``grpo(over=trajectory,std)``."""
    parts = [f"over={over}"] if over else []
    if std is not None:
        parts.append("std" if std else "no-std")
    parts.extend(extra)
    if degenerate != "zero":
        parts.append(f"degenerate={degenerate}")
    return f"{name}({','.join(parts)})"
