"""ECHO: the policy also learns to predict what the environment answers to its actions (docs/methods/echo.md).

    L = L_base + λ · mean over observation tokens of −log π(token | all before it)

All episodes teach, the failed ones too. In the dialogue layout the observations are in the row already and cost no
further pass. In the window layout, whose rows end with the response, each observation follows as a row of its own that
continues it (our adaptation), cut after ``max_tokens``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Episode, Group
from agentcredit.errors import UsageError
from agentcredit.methods.base import Assignment, Conversation, Credit, Kind, Paper, Params, Tools
from agentcredit.training.rows import Row, prompt_ends


class EchoParams(Params):
    """Parameters of ECHO."""

    lambda_: float = Field(
        default=0.05,
        ge=0,
        validation_alias=AliasChoices("lambda", "λ", "lambda_"),
        description="Weight of the observation loss (published: 0.01 … 0.05 help, 0.1 and more hurt, 0.2 collapses).",
    )
    skip_invalid: bool = Field(
        default=True,
        description="Leave out what the environment says to an invalid action: a fixed warning teaches nothing.",
    )
    max_tokens: int = Field(default=256, ge=1, description="Tokens of one observation that are predicted at most.")


class Echo:
    """Prediction of the environment's observations as an auxiliary loss."""

    name: ClassVar[str] = "echo"
    kind: ClassVar[Kind] = "auxiliary"
    Params: ClassVar[type[EchoParams]] = EchoParams
    paper: ClassVar[Paper] = Paper("ECHO: Terminal Agents Learn World Models for Free", "2605.24517", "2026")
    summary: ClassVar[str] = "Also trains the policy to predict what the environment answers to its actions."
    neutral: ClassVar[Mapping[str, Any]] = {"lambda": 0.0}

    def __init__(self, params: EchoParams) -> None:
        self.params = params

    def extend(self, groups: Sequence[Group], assignment: Assignment, tools: Tools) -> Assignment:
        """Adds cross-entropy weights that sum to λ over all observation tokens of the batch.

        Raises:
            UsageError: the run's policy has no tokenizer to find the observations with.
        """
        if self.params.lambda_ == 0 or not groups:
            return assignment
        if tools.template is None:
            raise UsageError("echo predicts observations token by token, which needs a policy with a chat template.")
        heard = [[self._heard(tools.template, e) for e in group.episodes] for group in groups]
        n_tokens = sum(int(mask.sum()) for per_group in heard for masks_T in per_group for mask in masks_T)
        after = self._rows_after(groups, tools.template)
        n_tokens += sum(len(row) for row in after)
        metrics = assignment.metrics | {"echo/tokens": float(n_tokens)}
        if n_tokens == 0:
            return replace(assignment, metrics=metrics)
        weight = self.params.lambda_ / n_tokens
        credits = [
            [_added(credit, [weight * mask for mask in masks_T]) for credit, masks_T in zip(own, masks_ET, strict=True)]
            for own, masks_ET in zip(assignment.credits, heard, strict=True)
        ]
        rows = [replace(row, ce_weight=np.full(len(row), weight, dtype=np.float32)) for row in after]
        return Assignment(credits, [*assignment.extra_rows, *rows], metrics)

    def label(self) -> str:
        """E.g. ``echo(lambda=0.05)``."""
        p = self.params
        every = "" if p.skip_invalid else ",warnings"
        return f"echo(lambda={p.lambda_:g}{every}{f',tokens={p.max_tokens}' if p.max_tokens != 256 else ''})"

    def _heard(self, template: Conversation, episode: Episode) -> list[np.ndarray]:
        """Dialogue: which prompt tokens of each turn are the observation that the action before it led to, bool [n]."""
        masks = [np.zeros(len(turn.prompt_ids), dtype=bool) for turn in episode.turns]
        if episode.layout == "dialogue":
            for before, turn, mask in zip(episode.turns, episode.turns[1:], masks[1:], strict=False):
                if turn.truncated_turns or not self._teaches(before.valid):
                    continue  # a rebuilt prompt repeats what was said before
                text = template.encode(turn.observation)
                start = _find(text, turn.prompt_ids)
                if start >= 0:
                    mask[start : start + min(len(text), self.params.max_tokens)] = True
        return masks

    def _rows_after(self, groups: Sequence[Group], template: Conversation) -> list[Row]:
        """Window: one row for each observation, after the response that it answers."""
        rows: list[Row] = []
        for group, ends_ET in zip(groups, prompt_ends(groups), strict=True):
            for episode, ends_T in zip(group.episodes, ends_ET, strict=True):
                if episode.layout == "dialogue":
                    continue
                for turn, (row, end) in zip(episode.turns, ends_T, strict=True):
                    ids = np.array(template.encode(turn.next_observation)[: self.params.max_tokens], dtype=np.int64)
                    if len(ids) and self._teaches(turn.valid):
                        nothing = np.zeros(len(ids), dtype=np.float32)
                        place = (row, end + turn.n_tokens)
                        rows.append(Row(ids, nothing.astype(bool), nothing, nothing, nothing, prefix=place))
        return rows

    def _teaches(self, valid: bool) -> bool:
        return valid or not self.params.skip_invalid


def _added(credit: Credit, weights_TN: Sequence[np.ndarray]) -> Credit:
    known = credit.ce_prompt_TN or tuple(np.zeros(len(weight)) for weight in weights_TN)
    return replace(credit, ce_prompt_TN=tuple(a + b for a, b in zip(known, weights_TN, strict=True)))


def _find(part: Sequence[int], whole: Sequence[int]) -> int:
    """Where a sequence stands in another; −1 if nowhere, or empty."""
    n = len(part)
    return next((k for k in range(len(whole) - n + 1) if list(whole[k : k + n]) == list(part)), -1) if n else -1
