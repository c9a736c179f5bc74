"""How well the policy forecasts before the step trains it: likelihood and exact match of each action, by how far ahead it is.

The rows asked for are this step's own, which no update has seen yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentcredit.episodes import Group
from agentcredit.methods.base import Generate, Tools
from agentcredit.methods.forecasts import Forecast, Writer, context_of, spelled

PROBED_ROWS = 64
"""Forecasts of a step that are measured, evenly spaced over all."""
_SPARE_TOKENS = 8
"""Tokens that a greedy answer may take beyond the longest of its targets, which spelling may cost."""


def spaced(values: Sequence[Any]) -> list[Any]:
    """At most :data:`PROBED_ROWS` of the values, evenly spaced."""
    count = min(len(values), PROBED_ROWS)
    return [values[index * len(values) // count] for index in range(count)]


def likelihoods(
    groups: Sequence[Group],
    forecasts: Sequence[Forecast],
    asides: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    tools: Tools,
) -> dict[str, float]:
    """Mean negative log-likelihood of a token by how many steps ahead its action is, by the rollout's weights."""
    assert tools.score is not None
    assert tools.template is not None
    pairs, lags = [], []
    for forecast, (ids, _, lag_N) in spaced(list(zip(forecasts, asides, strict=True))):
        context = context_of(groups[forecast.group].episodes[forecast.episode], forecast.turn)
        begin = int(np.flatnonzero(lag_N >= 0)[0])
        prompt = [*context[: len(context) - len(tools.template.answer_mark)], *ids[:begin].tolist()]
        pairs.append((prompt, ids[begin:].tolist()))
        lags.append(lag_N[begin:])
    nll_N = -np.concatenate(tools.score(pairs))
    lag_N = np.concatenate(lags)
    metrics = {f"cope/nll_lag{lag}": float(nll_N[lag_N == lag].mean()) for lag in np.unique(lag_N).tolist()}
    return metrics | {"cope/nll": float(nll_N.mean())}


def accuracy(
    groups: Sequence[Group],
    forecasts: Sequence[Forecast],
    asides: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    writer: Writer,
    generate: Generate,
) -> dict[str, float]:
    """Share of actions whose greedy forecast is exactly the one that was executed, by how many steps ahead they are.

    The n-th action of the answer stands against the n-th of the target; one that the answer does not reach is wrong.
    """
    taken = spaced(list(zip(forecasts, asides, strict=True)))
    prompts, keys = [], []
    for forecast, _ in taken:
        episode = groups[forecast.group].episodes[forecast.episode]
        prompts.append(writer.question(context_of(episode, forecast.turn)))
        keys.append(("forecast", episode.task.id, episode.sibling, forecast.turn))
    longest = max(int((lag_N >= 0).sum()) for _, (_, _, lag_N) in taken)
    answers = generate(prompts, keys, temperature=0.0, max_new_tokens=longest + _SPARE_TOKENS)
    hits: dict[int, list[bool]] = defaultdict(list)
    for (forecast, _), answer in zip(taken, answers, strict=True):
        for lag, hit in matches(forecast, writer.read(answer.ids)):
            hits[lag].append(hit)
    return {f"cope/top1_acc_lag{lag}": sum(of_lag) / len(of_lag) for lag, of_lag in sorted(hits.items())}


def matches(forecast: Forecast, answer: Sequence[str]) -> list[tuple[int, bool]]:
    """(lag, whether the answer's action in that place is exactly the target's) of every action of a forecast."""
    return [
        (lag, place < len(answer) and answer[place] == spelled(action))
        for place, (action, lag) in enumerate(zip(forecast.actions, forecast.lags, strict=True))
    ]
