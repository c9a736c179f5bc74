"""How methods become one: base estimator → shapers → refiners → residual of invalid actions → auxiliaries.

The residual comes after the shapers and refiners, so that their budgets stay exact and invalidity stays out of the shaping
(docs/methods/grpo.md). The trainer calls :meth:`Composition.credit` and never learns a method's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from agentcredit.episodes import Group
from agentcredit.errors import RunFailed
from agentcredit.methods.base import (
    Advantages,
    Assignment,
    Auxiliary,
    Credit,
    Estimator,
    Method,
    Refiner,
    Selective,
    Shaper,
    Stateful,
    TokenAdvantages,
    Tools,
)
from agentcredit.methods.outcome import split_turns, turn_scores

InvalidMode = Literal["residual", "before_norm", "off"]


@dataclass(frozen=True)
class Composition:
    """One estimator, any number of shapers, refiners and auxiliaries, and the penalty of invalid actions.

    ``invalid_penalty`` is c in units of the return. ``invalid_mode``: ``residual`` adds norm(R − c·invalid) − norm(R), both
    over the turns of the group; ``before_norm`` subtracts c from the invalid turns' scores before the estimator normalises;
    ``off`` leaves it out.
    """

    estimator: Estimator
    shapers: Sequence[Shaper] = ()
    refiners: Sequence[Refiner] = ()
    auxiliaries: Sequence[Auxiliary] = ()
    invalid_penalty: float = 0.1
    invalid_mode: InvalidMode = "residual"

    def credit(self, groups: Sequence[Group], tools: Tools) -> Assignment:
        """What every sampled token of the groups is worth; pure but for the methods' own state."""
        metrics: dict[str, float] = {}
        before_norm = self.invalid_penalty if self.invalid_mode == "before_norm" else 0.0
        base = self.estimator.advantages(groups, metrics, before_norm)
        advantages = base
        for shaper in self.shapers:
            advantages = shaper.shape(groups, advantages, tools, metrics)
        tokens = [
            [_on_tokens(e.turns, a_T) for e, a_T in zip(group.episodes, a_ET, strict=True)]
            for group, a_ET in zip(groups, advantages, strict=True)
        ]
        for refiner in self.refiners:
            tokens = refiner.refine(groups, tokens, tools, metrics)
        if self.invalid_mode == "residual" and self.invalid_penalty > 0:
            tokens = [self._with_residual(group, a_ETN) for group, a_ETN in zip(groups, tokens, strict=True)]
        metrics.update(_generic_metrics(groups, base, tokens))
        credits = [[Credit(a_TN) for a_TN in a_ETN] for a_ETN in tokens]
        assignment = Assignment(credits, metrics=metrics)
        for auxiliary in self.auxiliaries:
            assignment = auxiliary.extend(groups, assignment, tools)
        return assignment

    def label(self) -> str:
        """Every choice in one line, e.g. ``grpo(over=trajectory,std)+invalid(residual,0.1)``."""
        off = self.invalid_mode == "off" or self.invalid_penalty == 0
        penalty = "invalid(off)" if off else f"invalid({self.invalid_mode},{self.invalid_penalty:g})"
        return "+".join([*(part.label() for part in self.parts()), penalty])

    def parts(self) -> list[Method]:
        """All methods, in the order in which they act."""
        return [self.estimator, *self.shapers, *self.refiners, *self.auxiliaries]

    def keeps(self, group: Group) -> bool:
        """Whether every method that is selective wants to train on the group."""
        return all(part.keeps(group) for part in self.parts() if isinstance(part, Selective))

    @property
    def max_batches(self) -> int:
        """How often a step plays at most."""
        return max((part.max_batches for part in self.parts() if isinstance(part, Selective)), default=1)

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state of the methods that have one, by method name."""
        return {part.name: part.state_dict() for part in self.parts() if isinstance(part, Stateful)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave.

        Raises:
            RunFailed: the state belongs to other methods.
        """
        parts = {part.name: part for part in self.parts() if isinstance(part, Stateful)}
        if set(state) != set(parts):
            raise RunFailed(
                f"The checkpoint holds the state of methods {sorted(state)}, this run's methods with a state are "
                f"{sorted(parts)}: continue it with the method it was started with, or start a new run."
            )
        for name, part in parts.items():
            part.load_state_dict(state[name])

    def _with_residual(
        self, group: Group, advantages_ETN: Sequence[tuple[np.ndarray, ...]]
    ) -> list[tuple[np.ndarray, ...]]:
        residual_ET = invalid_residual(group, self.estimator, self.invalid_penalty)
        return [
            tuple(a_N + residual for a_N, residual in zip(a_TN, residual_T, strict=True))
            for a_TN, residual_T in zip(advantages_ETN, residual_ET, strict=True)
        ]


def invalid_residual(group: Group, estimator: Estimator, penalty: float) -> list[np.ndarray]:
    """The advantage that the penalty alone makes: norm(R − c·invalid) − norm(R), one float64 array [T] per episode.

    Both norms run over the turns of the group whatever the estimator's own scope (AlignOPSD's code). Where all returns are
    equal and the estimator divides by the deviation, that deviation is the penalties' own: the size of the residual then
    does not depend on c.
    """
    outcome_N = _concatenate([turn_scores(episode) for episode in group.episodes])
    penalised_N = _concatenate([turn_scores(episode, penalty) for episode in group.episodes])
    if np.array_equal(outcome_N, penalised_N):
        return split_turns(group, np.zeros(len(outcome_N)))
    return split_turns(group, estimator.normalise(penalised_N) - estimator.normalise(outcome_N))


def _on_tokens(turns: Sequence[Any], advantages_T: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.full(turn.n_tokens, a, dtype=np.float64) for turn, a in zip(turns, advantages_T, strict=True))


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0)


def _generic_metrics(groups: Sequence[Group], base: Advantages, final: TokenAdvantages) -> dict[str, float]:
    """What is logged for every method: sizes of advantages and how many groups carry a signal."""
    if not groups:
        return {}
    base_N = _concatenate([a_T for a_ET in base for a_T in a_ET])
    # Each turn counts once, by the largest advantage of its tokens: without refiners that of all of them.
    final_N = np.array([np.abs(a_N).max() for a_ETN in final for a_TN in a_ETN for a_N in a_TN if len(a_N)])
    successes = [[episode.success for episode in group.episodes] for group in groups]
    metrics = {
        "credit/groups_all_success": _share([all(s) for s in successes]),
        "credit/groups_all_fail": _share([not any(s) for s in successes]),
        "credit/groups_mixed": _share([any(s) and not all(s) for s in successes]),
        "credit/groups_zero_std": _share([len({e.ret for e in group.episodes}) <= 1 for group in groups]),
        "credit/groups_without_signal": _share(
            [not any(np.any(a_N) for a_TN in a_ETN for a_N in a_TN) for a_ETN in final]
        ),
    }
    if len(final_N):
        metrics["credit/abs_advantage_base"] = float(np.mean(np.abs(base_N)))
        metrics["credit/abs_advantage"] = float(np.mean(final_N))
        metrics["credit/nonzero_share"] = float(np.mean(final_N != 0))
    return metrics


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)
