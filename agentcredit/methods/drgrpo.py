"""Dr.GRPO: GRPO without the two divisions that favour some episodes over others (docs/methods/drgrpo.md).

    A_i = R_i − mean

GRPO's division by the deviation makes groups that almost always succeed or fail weigh more; its mean over a response's
tokens makes long failures cheap. The second is the loss's: this method's default is ``seq-mean-token-sum-norm``, the sum
of an episode's token losses over one constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from pydantic import AliasChoices, Field

from agentcredit.methods.base import Paper, Params
from agentcredit.methods.grpo import Grpo
from agentcredit.methods.outcome import Degenerate, Over, fit_normalised, label_of


class DrgrpoParams(Params):
    """Parameters of Dr.GRPO."""

    baseline_over: Over = Field(
        default="trajectory",
        validation_alias=AliasChoices("baseline_over", "over"),
        description="Mean over trajectories (each sibling once) or over steps (long episodes weigh more).",
    )
    degenerate: Degenerate = Field(
        default="zero",
        validation_alias=AliasChoices("degenerate", "singleton"),
        description="Advantage of a lone score: 0, or the score itself as in public code.",
    )


class Drgrpo(Grpo):
    """Mean-centred outcome advantage, the same on all turns of an episode."""

    name: ClassVar[str] = "drgrpo"
    Params: ClassVar[type[DrgrpoParams]] = DrgrpoParams  # pyright: ignore[reportIncompatibleVariableOverride]
    paper: ClassVar[Paper] = Paper("Understanding R1-Zero-Like Training: A Critical Perspective", "2503.20783", "2025")
    summary: ClassVar[str] = "GRPO without division by the deviation or by the length of an episode."
    defaults: ClassVar[Mapping[str, Any]] = {"loss.aggregation": "seq-mean-token-sum-norm"}

    def __init__(self, params: DrgrpoParams) -> None:
        self.params = params
        self._fit = partial(fit_normalised, std=False, degenerate=params.degenerate)

    def label(self) -> str:
        """E.g. ``drgrpo(over=trajectory)``."""
        return label_of(self.name, self.params.baseline_over, None, self.params.degenerate)
