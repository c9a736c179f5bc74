"""CoPE: the policy also learns to say what it will do next, from its own successes (docs/methods/cope.md).

From the context of every action of a successful episode, the model is asked for the next K+1 actions; what the
environment answers in between is not shown. The answer is trained by cross-entropy beside the base's policy gradient:

    L = L_base + λ · mean_g mean_{i ∈ successes of g} mean_t ℓ(i, t)        ℓ: mean over the answer's tokens

so the forecast's weight does not grow with the number of successes. Nothing is added when the model acts.
A reconstruction from the paper's announcement; every alternative reading is a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Episode, Group, Turn
from agentcredit.errors import UsageError
from agentcredit.methods.base import Assignment, Conversation, Kind, Paper, Params, Tools
from agentcredit.policies.noise import generator
from agentcredit.training.rows import Row, prompt_ends

SCORED_ROWS = 64
"""Forecasts whose likelihood per lag is logged."""


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


@dataclass(frozen=True)
class Forecast:
    """What the context of one action is asked to say, with the weight of its loss (λ left out)."""

    group: int
    episode: int
    turn: int
    actions: tuple[str, ...]
    lags: tuple[int, ...]
    ended: bool
    weight: float = 0.0


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
        metrics = _counts(forecasts, groups)
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
        if (
            tools.score is not None
            and self.params.log_every
            and tools.step % self.params.log_every == 1 % self.params.log_every
        ):
            metrics |= _likelihoods(groups, forecasts, asides, tools)
        return Assignment(assignment.credits, [*assignment.extra_rows, *rows], assignment.metrics | metrics)

    def label(self) -> str:
        """E.g. ``cope(lambda=0.01,K=2)``; every parameter that is not the default."""
        changed = self.params.changed()
        lam, horizon = changed.pop("lambda_", self.params.lambda_), changed.pop("horizon", self.params.horizon)
        changed.pop("log_every", None)
        rest = [f"{name}={_plain(value)}" for name, value in changed.items()]
        return f"cope({','.join([f'lambda={lam:g}', f'K={horizon}', *rest])})"


def forecasts_of(groups: Sequence[Group], params: CopeParams) -> list[Forecast]:
    """All forecasts: from every turn of every episode that counts, the next K+1 executed actions."""
    found: list[Forecast] = []
    for g, group in enumerate(groups):
        for e, episode in enumerate(group.episodes):
            if params.success_filter and not episode.success:
                continue
            for t in range(len(episode.turns)):
                actions, lags = _chunk(episode, t, params)
                ended = t + params.horizon + 1 > len(episode.turns)
                if actions and not (ended and params.truncate == "drop"):
                    found.append(Forecast(g, e, t, actions, lags, ended and params.truncate == "end"))
    return found


def chosen(
    forecasts: Sequence[Forecast], groups: Sequence[Group], limit: int, rng: np.random.Generator
) -> list[Forecast]:
    """At most ``limit`` forecasts of each episode, drawn without replacement and kept in order; 0: all.

    An episode's draw depends on the batch's number from ``rng`` and on what episode it is, not on its place in the batch.
    """
    number = int(rng.integers(2**62))
    kept: list[Forecast] = []
    for (g, e), own in _by_episode(forecasts).items():
        if limit and len(own) > limit:
            episode = groups[g].episodes[e]
            draws = generator(("cope", number, episode.task.id, episode.sibling))
            own = [own[index] for index in sorted(draws.choice(len(own), limit, replace=False).tolist())]
        kept += own
    return kept


def weighted(forecasts: Sequence[Forecast], groups: Sequence[Group], params: CopeParams) -> list[Forecast]:
    """The forecasts with the weight of each one's loss.

    With ``group_norm`` and means throughout, the weights of a batch sum to 1 whenever there is any forecast:
    1 / (groups with a forecast · the group's episodes with one · the episode's forecasts).
    """
    by_episode = _by_episode(forecasts)
    episodes_of: dict[int, int] = {}
    for group, _ in by_episode:
        episodes_of[group] = episodes_of.get(group, 0) + 1
    result: list[Forecast] = []
    for (g, _), own in by_episode.items():
        if params.group_norm:
            weight = 1.0 / (len(episodes_of) * episodes_of[g])
        else:
            weight = 1.0 / (len(groups) * len(groups[g].episodes))
        if params.turn_agg == "mean":
            weight /= len(own)
        if params.difficulty_weight:
            weight *= 1.0 - sum(episode.success for episode in groups[g].episodes) / len(groups[g].episodes)
        result += [replace(forecast, weight=weight) for forecast in own]
    return result


class Writer:
    """Forecasts as tokens: the question, and the answer that is trained."""

    def __init__(self, template: Conversation, terse: bool, params: CopeParams) -> None:
        count = params.horizon + 1
        self._template = template
        self._params = params
        self._terse = terse
        self._question = template.aside(
            f"next {count}"
            if terse
            else f"Do not act now. Write down the actions that you will take from here, the next {count} at most, in order: "
            "one numbered line for each, without reasoning."
        )
        self._mark = list(template.answer_mark)

    def check(self, prompt_ids: Sequence[int]) -> None:
        """Raises UsageError where a prompt does not end with the mark that the question replaces."""
        if list(prompt_ids[len(prompt_ids) - len(self._mark) :]) != self._mark:
            raise UsageError("cope: the policy's prompts do not end with its chat template's start of an answer.")

    def write(self, forecast: Forecast) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids int64 [N] of question and answer; loss weight float64 [N], 0 on the question; lag int64 [N], −1 outside actions."""
        ids, lags = list(self._question), [-1] * len(self._question)
        for number, (action, lag) in enumerate(zip(forecast.actions, forecast.lags, strict=True), start=1):
            line = f"{action}; " if self._terse else f"{number}. {action}\n"
            tokens = self._template.encode(line)
            ids += tokens
            lags += [lag] * len(tokens)
        last = self._template.encode("done") if forecast.ended else []
        ids += [*last, self._template.end_id]
        lags += [forecast.lags[-1]] * (len(last) + 1)
        lag_N = np.array(lags)
        share_N = np.where(lag_N >= 0, self._params.lag_decay ** np.maximum(lag_N, 0), 0.0)
        if self._params.token_agg == "mean" and share_N.sum() > 0:
            share_N /= share_N.sum()
        return np.array(ids, dtype=np.int64), forecast.weight * share_N, lag_N


def _chunk(episode: Episode, t: int, params: CopeParams) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The actions of a forecast and how many steps ahead each is."""
    turns = list(enumerate(episode.turns[t : t + params.horizon + 1]))
    if not params.current_action:
        turns = turns[1:]
    valid = [turn.valid for _, turn in turns]
    if not all(valid):
        if params.invalid_filter == "drop_row":
            turns = []
        elif params.invalid_filter == "cut":
            turns = turns[: valid.index(False)]
        elif params.invalid_filter == "splice":
            turns = [(lag, turn) for lag, turn in turns if turn.valid]
    return tuple(turn.action for _, turn in turns), tuple(lag for lag, _ in turns)


def _by_episode(forecasts: Sequence[Forecast]) -> dict[tuple[int, int], list[Forecast]]:
    result: dict[tuple[int, int], list[Forecast]] = {}
    for forecast in forecasts:
        result.setdefault((forecast.group, forecast.episode), []).append(forecast)
    return result


def _row(ids: np.ndarray, ce_weight: np.ndarray, prefix: tuple[int, int]) -> Row:
    nothing = np.zeros(len(ids), dtype=np.float32)
    return Row(ids, np.zeros(len(ids), dtype=bool), nothing, nothing, ce_weight.astype(np.float32), prefix=prefix)


def _counts(forecasts: Sequence[Forecast], groups: Sequence[Group]) -> dict[str, float]:
    if not groups:
        return {}
    won = [[episode.success for episode in group.episodes] for group in groups]
    metrics = {
        "cope/rows": float(len(forecasts)),
        "cope/episodes": float(len(_by_episode(forecasts))),
        "cope/groups_with_success": sum(any(w) for w in won) / len(won),
        "cope/all_success_share": sum(all(w) for w in won) / len(won),
        "cope/weight_sum": sum(forecast.weight for forecast in forecasts),
    }
    # What the method can drift to: doing nothing, where the tasks that succeed are those that need nothing done.
    said = [_is_idle(groups[f.group].episodes[f.episode].turns[f.turn]) for f in forecasts]
    played = [_is_idle(turn) for group in groups for episode in group.episodes for turn in episode.turns]
    if said:
        metrics["cope/target_noop_share"] = sum(said) / len(said)
        metrics["cope/rollout_noop_share"] = sum(played) / len(played)
    return metrics


def _is_idle(turn: Turn) -> bool:
    """Whether the action left the state as it was."""
    return turn.state_key is not None and turn.state_key == turn.next_state_key


def _likelihoods(
    groups: Sequence[Group],
    forecasts: Sequence[Forecast],
    asides: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    tools: Tools,
) -> dict[str, float]:
    """Mean negative log-likelihood of a token by how many steps ahead its action is, by the rollout's weights."""
    assert tools.score is not None
    assert tools.template is not None
    every = max(1, len(forecasts) // SCORED_ROWS)
    taken = list(zip(forecasts, asides, strict=True))[::every][:SCORED_ROWS]
    pairs, lags = [], []
    for forecast, (ids, _, lag_N) in taken:
        context = _context(groups[forecast.group].episodes[forecast.episode], forecast.turn)
        begin = int(np.flatnonzero(lag_N >= 0)[0])
        prompt = [*context[: len(context) - len(tools.template.answer_mark)], *ids[:begin].tolist()]
        pairs.append((prompt, ids[begin:].tolist()))
        lags.append(lag_N[begin:])
    nll_N = -np.concatenate(tools.score(pairs))
    lag_N = np.concatenate(lags)
    metrics = {f"cope/nll_lag{lag}": float(nll_N[lag_N == lag].mean()) for lag in np.unique(lag_N).tolist()}
    return metrics | {"cope/nll": float(nll_N.mean())}


def _context(episode: Episode, t: int) -> list[int]:
    """All that the model had before it at a turn, the prompt included."""
    begin = t
    if episode.layout == "dialogue":
        while begin > 0 and not episode.turns[begin].truncated_turns:
            begin -= 1
    ids = [token for turn in episode.turns[begin:t] for token in (*turn.prompt_ids, *turn.response_ids)]
    return [*ids, *episode.turns[t].prompt_ids]


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
