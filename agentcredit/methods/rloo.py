"""RLOO: the baseline of each sibling is the mean return of the others (docs/methods/rloo.md).

    A_i = R_i − mean_{j≠i} R_j = n/(n−1) · (R_i − mean)

The leave-one-out baseline does not depend on the sibling's own actions, so over trajectories the policy gradient is
unbiased; over steps, n counts turns and an episode's other turns stay in its own baseline (the public code's default).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group
from agentcredit.methods.base import Advantages, Kind, Paper, Params
from agentcredit.methods.outcome import Degenerate, Over, fit_leave_one_out, label_of, relative


class RlooParams(Params):
    """Parameters of RLOO."""

    baseline_over: Over = Field(
        default="trajectory",
        validation_alias=AliasChoices("baseline_over", "over"),
        description="Leave one out of the trajectories (the estimator of the paper) or of the steps (public agent code).",
    )
    degenerate: Degenerate = Field(
        default="zero",
        validation_alias=AliasChoices("degenerate", "singleton"),
        description="Advantage of a lone score: 0, or the score itself as in public code.",
    )


class Rloo:
    """Leave-one-out outcome advantage, the same on all turns of an episode."""

    name: ClassVar[str] = "rloo"
    kind: ClassVar[Kind] = "estimator"
    Params: ClassVar[type[RlooParams]] = RlooParams
    paper: ClassVar[Paper] = Paper(
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
        "2402.14740",
        "ACL 2024",
    )
    summary: ClassVar[str] = "One advantage per episode: its return minus the mean return of its siblings."

    def __init__(self, params: RlooParams) -> None:
        self.params = params
        self._fit = partial(fit_leave_one_out, degenerate=params.degenerate)

    def advantages(self, groups: Sequence[Group], metrics: dict[str, float], penalty: float = 0.0) -> Advantages:
        """One float64 array [T] per episode; all entries equal unless ``penalty`` tells invalid turns apart."""
        return [relative(group, self._fit, self.params.baseline_over, penalty) for group in groups]

    def normalise(self, scores_N: np.ndarray) -> np.ndarray:
        """Each score minus the mean of the others."""
        return self._fit(scores_N).apply(scores_N)

    def label(self) -> str:
        """E.g. ``rloo(over=trajectory)``."""
        return label_of(self.name, self.params.baseline_over, None, self.params.degenerate)
