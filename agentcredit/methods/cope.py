"""CoPE: the policy also learns to say what it will do next, from its own successes (docs/methods/cope.md).

From the context of every action of a successful episode, the model is asked for the next K+1 actions; what the
environment answers in between is not shown. The answer is trained by cross-entropy beside the base's policy gradient:

    L = L_base + λ · mean_g mean_{i ∈ successes of g} mean_t ℓ(i, t)        ℓ: mean over the answer's tokens

so the forecast's weight does not grow with the number of successes. Nothing is added when the model acts.
A reconstruction from the paper's announcement; every alternative reading is a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group
from agentcredit.errors import UsageError
from agentcredit.methods.base import Assignment, Kind, Paper, Params, Tools
from agentcredit.methods.cope_metrics import idle_split, target_metrics
from agentcredit.methods.cope_probe import accuracy, likelihoods
from agentcredit.methods.forecasts import Writer, chosen, forecasts_of, weighted
from agentcredit.training.rows import Row, prompt_ends


class CopeParams(Params):
    """Parameters of CoPE."""

    lambda_: float = Field(
        default=0.01,
        ge=0,
        validation_alias=AliasChoices("lambda", "λ", "lambda_"),
        description="Weight of the forecast loss (published: 0.01 best, 1e-4 … 1e-1 all better than none); 0 gives the base.",
    )
    horizon: int = Field(
        default=2,
        ge=0,
        validation_alias=AliasChoices("horizon", "K"),
        description="Actions to forecast beyond the next one (published: 2 best of 0, 1, 2, 4).",
    )
    success_filter: bool = Field(
        default=True, description="Forecast successful episodes only; without it the published reward collapsed."
    )
    group_norm: bool = Field(
        default=True,
        description="Weigh groups and successes alike; false: every forecast weighs 1/(G · T), so that more successes weigh more.",
    )
    turn_agg: Literal["mean", "sum"] = Field(
        default="mean", description="Forecasts of an episode: their mean, or their sum (long episodes weigh more)."
    )
    token_agg: Literal["mean", "sum"] = Field(
        default="mean",
        description="Tokens of a forecast: mean, which makes λ independent of an action's length, or sum.",
    )
    lag_decay: float = Field(
        default=1.0, ge=0, description="The action k steps ahead weighs this to the power k within its forecast."
    )
    current_action: bool = Field(
        default=True,
        description="Forecast the next action too; false: only those after it (published: the next one helps early and hurts late).",
    )
    truncate: Literal["shorten", "drop", "end"] = Field(
        default="shorten",
        description="Near the end of an episode: a shorter list, no forecast, or a list closed by a line that says so.",
    )
    invalid_filter: Literal["none", "drop_row", "cut", "splice"] = Field(
        default="none",
        description="Invalid actions in a forecast: keep, drop the forecast, cut it before the first, or leave them out.",
    )
    difficulty_weight: bool = Field(
        default=False,
        description="Weigh a group by 1 − its success rate, against targets from the easiest tasks (ours).",
    )
    max_rows: int = Field(
        default=16,
        ge=0,
        validation_alias=AliasChoices("max_rows", "M_max"),
        description="Forecasts of one episode at most, drawn at random; 0: all.",
    )
    log_every: int = Field(
        default=10, ge=0, description="Steps between measurements of the likelihood per lag; 0: never."
    )
    probe_every: int = Field(
        default=10,
        ge=0,
        description="Steps between measurements of how often the likeliest forecast is exactly right, per lag; 0: never.",
    )


class Cope:
    """Forecasts of the policy's own next actions as an auxiliary loss."""

    name: ClassVar[str] = "cope"
    kind: ClassVar[Kind] = "auxiliary"
    Params: ClassVar[type[CopeParams]] = CopeParams
    paper: ClassVar[Paper] = Paper("Co-Evolving Acting and Forecasting for Language Agents", "2610.20597", "2026")
    summary: ClassVar[str] = "Also trains the policy to forecast its own next actions, from successful episodes."
    neutral: ClassVar[Mapping[str, Any]] = {"lambda": 0.0}

    def __init__(self, params: CopeParams) -> None:
        self.params = params

    def extend(self, groups: Sequence[Group], assignment: Assignment, tools: Tools) -> Assignment:
        """Adds one row per forecast, which continues the context its first action was chosen in.

        Raises:
            UsageError: the run's policy has no chat template to ask with.
        """
        forecasts = weighted(
            chosen(forecasts_of(groups, self.params), groups, self.params.max_rows, tools.rng), groups, self.params
        )
        metrics = target_metrics(forecasts, groups) | idle_split(groups)
        if self.params.lambda_ == 0 or not forecasts:
            return replace(assignment, metrics=assignment.metrics | metrics)
        if tools.template is None:
            raise UsageError("cope asks the model for forecasts, which needs a policy with a chat template.")
        writer = Writer(tools.template, tools.terse, self.params)
        ends = prompt_ends(groups)
        asides = [writer.write(forecast) for forecast in forecasts]
        rows = []
        for forecast, (ids, weight_N, _) in zip(forecasts, asides, strict=True):
            row, length = ends[forecast.group][forecast.episode][forecast.turn]
            turn = groups[forecast.group].episodes[forecast.episode].turns[forecast.turn]
            writer.check(turn.prompt_ids)
            rows.append(_row(ids, self.params.lambda_ * weight_N, (row, length - len(tools.template.answer_mark))))
        if tools.score is not None and _is_due(self.params.log_every, tools.step):
            metrics |= likelihoods(groups, forecasts, asides, tools)
        if tools.generate is not None and _is_due(self.params.probe_every, tools.step):
            metrics |= accuracy(groups, forecasts, asides, writer, tools.generate)
        return Assignment(assignment.credits, [*assignment.extra_rows, *rows], assignment.metrics | metrics)

    def label(self) -> str:
        """E.g. ``cope(lambda=0.01,K=2)``; every parameter that is not the default."""
        changed = self.params.changed()
        lam, horizon = changed.pop("lambda_", self.params.lambda_), changed.pop("horizon", self.params.horizon)
        for measured in ("log_every", "probe_every"):
            changed.pop(measured, None)
        rest = [f"{name}={_plain(value)}" for name, value in changed.items()]
        return f"cope({','.join([f'lambda={lam:g}', f'K={horizon}', *rest])})"


def _row(ids: np.ndarray, ce_weight: np.ndarray, prefix: tuple[int, int]) -> Row:
    nothing = np.zeros(len(ids), dtype=np.float32)
    return Row(ids, np.zeros(len(ids), dtype=bool), nothing, nothing, ce_weight.astype(np.float32), prefix=prefix)


def _is_due(every: int, step: int) -> bool:
    """Whether something is measured in this step: the first, and every so many after it; 0: never."""
    return bool(every) and step % every == 1 % every


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
