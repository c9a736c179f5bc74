"""DAPO: GRPO on groups that have something to compare, with more room for unlikely actions (docs/methods/dapo.md).

Dynamic sampling: a group whose returns are all equal is dropped, and other tasks are played in its place until the step
is full or ``max_batches`` were played. Clip-higher (0.2 below, 0.28 above) and the token mean are defaults of the loss.
What the dropped groups cost is counted: ``rollout/*`` and ``total/*`` are over all episodes that were played.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import AliasChoices, Field

from agentcredit.episodes import Group
from agentcredit.methods.base import Paper
from agentcredit.methods.grpo import Grpo, GrpoParams


class DapoParams(GrpoParams):
    """Parameters of DAPO."""

    max_batches: int = Field(
        default=10,
        ge=1,
        validation_alias=AliasChoices("max_batches", "max_num_gen_batches"),
        description="How often a step plays at most, the first time included; 1: nothing is dropped.",
    )


class Dapo(Grpo):
    """GRPO with dynamic sampling."""

    name: ClassVar[str] = "dapo"
    Params: ClassVar[type[DapoParams]] = DapoParams  # pyright: ignore[reportIncompatibleVariableOverride]
    paper: ClassVar[Paper] = Paper(
        "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", "2503.14476", "2025"
    )
    summary: ClassVar[str] = "GRPO that replaces groups without contrast by new tasks, with a wider upper clip."
    defaults: ClassVar[Mapping[str, Any]] = {
        "loss.aggregation": "token-mean",
        "loss.clip_low": 0.2,
        "loss.clip_high": 0.28,
    }

    params: DapoParams

    def __init__(self, params: DapoParams) -> None:
        super().__init__(params)

    @property
    def max_batches(self) -> int:
        """How often a step plays at most."""
        return self.params.max_batches

    def keeps(self, group: Group) -> bool:
        """Whether any two returns differ; exactly, and before penalties (the public code)."""
        return self.params.max_batches == 1 or len({episode.ret for episode in group.episodes}) > 1

    def label(self) -> str:
        """E.g. ``dapo(over=trajectory,std,batches=10)``."""
        return f"{super().label()[:-1]},batches={self.params.max_batches})"
