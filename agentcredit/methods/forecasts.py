"""Forecasts of an agent's own next actions: which ones an episode gives, what each weighs, and how it is asked and read.

A forecast is asked for in the context that an action was chosen in, by one more message of the user, and answered by the list
of the actions that follow. CoPE trains them (cope.py); the explicit ensemble ranks actions by them (forecaster/).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from agentcredit.episodes import Episode, Group
from agentcredit.errors import UsageError
from agentcredit.methods.base import Conversation
from agentcredit.policies.noise import generator

if TYPE_CHECKING:
    from agentcredit.methods.cope import CopeParams

END = "done"
"""What closes the list of a forecast that reaches the end of its episode (``truncate = "end"``)."""
_NUMBERED = re.compile(r"^\s*\d+[.)] *(.*?)\s*$", re.MULTILINE)


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
    for (g, e), own in by_episode(forecasts).items():
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
    of_episodes = by_episode(forecasts)
    episodes_of: dict[int, int] = {}
    for group, _ in of_episodes:
        episodes_of[group] = episodes_of.get(group, 0) + 1
    result: list[Forecast] = []
    for (g, _), own in of_episodes.items():
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
        # Terse, it is the number alone: a forecast is short, and what it adds to an update is its tokens.
        self._question = template.aside(
            f"{count}"
            if terse
            else f"Do not act now. Write down the actions that you will take from here, the next {count} at most, in order: "
            "one numbered line for each, without reasoning."
        )
        self._mark = list(template.answer_mark)

    def check(self, prompt_ids: Sequence[int]) -> None:
        """Raises UsageError where a prompt does not end with the mark that the question replaces."""
        if list(prompt_ids[len(prompt_ids) - len(self._mark) :]) != self._mark:
            raise UsageError("cope: the policy's prompts do not end with its chat template's start of an answer.")

    def question(self, context: Sequence[int]) -> list[int]:
        """Ids of the context of an action (it ends with the mark) when a forecast is asked for instead."""
        return [*context[: len(context) - len(self._mark)], *self._question]

    def read(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The actions of an answer, in order and in the spelling of executed ones (:func:`spelled`)."""
        return actions_in(self._template.decode(ids), self._terse)

    def line(self, number: int, action: str) -> list[int]:
        """Ids of the ``number``-th action (from 1) of an answer."""
        return self._template.encode(f"{action};" if self._terse else f"{number}. {action}\n")

    def write(self, forecast: Forecast) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids int64 [N] of question and answer; loss weight float64 [N], 0 on the question; lag int64 [N], −1 outside actions."""
        ids, lags = list(self._question), [-1] * len(self._question)
        for number, (action, lag) in enumerate(zip(forecast.actions, forecast.lags, strict=True), start=1):
            tokens = self.line(number, action)
            ids += tokens
            lags += [lag] * len(tokens)
        last = self._template.encode(END) if forecast.ended else []
        ids += [*last, self._template.end_id]
        lags += [forecast.lags[-1]] * (len(last) + 1)
        lag_N = np.array(lags)
        share_N = np.where(lag_N >= 0, self._params.lag_decay ** np.maximum(lag_N, 0), 0.0)
        if self._params.token_agg == "mean" and share_N.sum() > 0:
            share_N /= share_N.sum()
        return np.array(ids, dtype=np.int64), forecast.weight * share_N, lag_N


def actions_in(text: str, terse: bool) -> tuple[str, ...]:
    """The actions of a forecast's text: between semicolons (terse), or the numbered lines. The closing word is none."""
    parts = text.split(";") if terse else _NUMBERED.findall(text)
    return tuple(action for part in parts if (action := spelled(part)) and action != END)


def spelled(action: str) -> str:
    """An action as the environment is given it: lower case, single spaces (``policies.actions.parse``)."""
    return " ".join(action.lower().split())


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


def by_episode(forecasts: Sequence[Forecast]) -> dict[tuple[int, int], list[Forecast]]:
    """The forecasts of each (group, episode), in order."""
    result: dict[tuple[int, int], list[Forecast]] = {}
    for forecast in forecasts:
        result.setdefault((forecast.group, forecast.episode), []).append(forecast)
    return result


def context_of(episode: Episode, t: int) -> list[int]:
    """All that the model had before it at a turn, the prompt included."""
    begin = t
    if episode.layout == "dialogue":
        while begin > 0 and not episode.turns[begin].truncated_turns:
            begin -= 1
    ids = [token for turn in episode.turns[begin:t] for token in (*turn.prompt_ids, *turn.response_ids)]
    return [*ids, *episode.turns[t].prompt_ids]
