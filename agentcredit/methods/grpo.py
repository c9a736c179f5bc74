"""GRPO: compare the outcomes of siblings and give every action of an episode the same advantage (docs/methods/grpo.md).

    A_i = (R_i − mean) / (std + 1e-6)        std unbiased (ddof=1)

"GRPO" is not one algorithm across papers: over what the mean is taken, and whether it is divided by the deviation, are
parameters here and part of the label. ``std = false`` is the advantage of Dr.GRPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group
from agentcredit.methods.base import Advantages, Kind, Paper, Params
from agentcredit.methods.outcome import Degenerate, Over, fit_normalised, label_of, relative


class GrpoParams(Params):
    """Parameters of GRPO."""

    baseline_over: Over = Field(
        default="trajectory",
        validation_alias=AliasChoices("baseline_over", "over"),
        description="Mean and deviation over trajectories (each sibling once) or over steps (long episodes weigh more).",
    )
    std: bool = Field(
        default=True, description="Divide by the group's standard deviation; false gives Dr.GRPO's advantage."
    )
    degenerate: Degenerate = Field(
        default="zero",
        validation_alias=AliasChoices("degenerate", "singleton"),
        description="Advantage of a group without contrast (one score, or all equal): 0, or what public code gives.",
    )


class Grpo:
    """Group-relative outcome advantage, the same on all turns of an episode."""

    name: ClassVar[str] = "grpo"
    kind: ClassVar[Kind] = "estimator"
    Params: ClassVar[type[GrpoParams]] = GrpoParams
    paper: ClassVar[Paper] = Paper(
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", "2402.03300", "2024"
    )
    summary: ClassVar[str] = "One advantage per episode: its return against its siblings' mean and deviation."

    def __init__(self, params: GrpoParams) -> None:
        self.params = params
        self._fit = partial(fit_normalised, std=params.std, degenerate=params.degenerate)

    def advantages(self, groups: Sequence[Group], metrics: dict[str, float], penalty: float = 0.0) -> Advantages:
        """One float64 array [T] per episode; all entries equal unless ``penalty`` tells invalid turns apart."""
        return [relative(group, self._fit, self.params.baseline_over, penalty) for group in groups]

    def normalise(self, scores_N: np.ndarray) -> np.ndarray:
        """(score − mean)/(std + 1e-6) over the turns given."""
        return self._fit(scores_N).apply(scores_N)

    def label(self) -> str:
        """E.g. ``grpo(over=trajectory,std)``."""
        return label_of(self.name, self.params.baseline_over, self.params.std, self.params.degenerate)
