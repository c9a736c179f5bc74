"""AHEAD: a teacher that reads what the environment answered, and a hint where a step went wrong (docs/methods/ahead.md).

    δ  = log π(token | context, feedback, hint) − log π(token | context)      by the rollout's weights
    A' = A (1 + λ sign(A) clip(δ, −ε, ε))                                      within ±λε of A

Feedback is given on every step of the episodes in scope, a hint on error steps only. Where A is 0 the teacher is not asked.
The formula is known second-hand, without certainty about sign(A): ``sign_mode=literal`` leaves it out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import AliasChoices, Field, model_validator

from agentcredit.episodes import Episode, Group
from agentcredit.errors import UsageError
from agentcredit.methods.base import Kind, Paper, Params, TokenAdvantages, Tools
from agentcredit.methods.error_steps import Detector, Hints, error_steps
from agentcredit.methods.failures import analyse
from agentcredit.methods.rlsd import faded
from agentcredit.methods.teacher import action_tokens, gaps


class AheadParams(Params):
    """Parameters of AHEAD."""

    lambda_: float = Field(
        default=0.5,
        ge=0,
        validation_alias=AliasChoices("lambda", "λ", "lambda_"),
        description="Weight of the teacher's opinion; 0 gives the base. λε stays below 1, so that no advantage changes its sign.",
    )
    epsilon: float = Field(
        default=0.5,
        ge=0,
        validation_alias=AliasChoices("epsilon", "ε"),
        description="Bound of a token's log-ratio.",
    )
    sign_mode: Literal["aligned", "literal"] = Field(
        default="aligned",
        description="Aligned: in a failure what the teacher prefers is blamed less; literal: the formula as reported, which blames it more.",
    )
    scope: Literal["failed", "all"] = Field(
        default="failed",
        validation_alias=AliasChoices("scope", "pi_scope"),
        description="Episodes that the teacher reads: failures (a digest of the abstract), or all of them (the announcement).",
    )
    detectors: tuple[Detector, ...] = Field(
        default=("rules", "peer"),
        description="Who names error steps: general rules, a successful sibling, the graph of all siblings, a language model (`llm`, which `method.analyser` names); the first that names a step gives the hint.",
    )
    feedback: bool = Field(default=True, description="Tell the teacher what the environment answered, on every step.")
    hints: bool = Field(default=True, description="Tell the teacher a hint on error steps.")
    max_hints: int = Field(
        default=3,
        ge=0,
        validation_alias=AliasChoices("max_hints", "M"),
        description="Error steps of one episode at most, the earliest.",
    )
    max_words: int = Field(default=200, ge=1, description="Words of an observation that the teacher is shown.")
    center: Literal["none", "turn", "trajectory"] = Field(
        default="none",
        description="Subtract the mean log-ratio of the turn or episode first: feedback often names the action, which flatters it.",
    )
    token_scope: Literal["response", "action"] = Field(
        default="response", description="Tokens that are re-weighed: the whole response, or the action's."
    )
    warmdown: int = Field(
        default=0,
        ge=0,
        validation_alias=AliasChoices("warmdown", "warmdown_steps"),
        description="Steps over which λ falls linearly to 0; 0: it stays.",
    )

    @model_validator(mode="after")
    def _keeps_signs(self) -> Self:
        if self.lambda_ * self.epsilon >= 1:
            raise ValueError(
                f"lambda · epsilon is {self.lambda_ * self.epsilon:g}: keep it below 1, or advantages change their sign"
            )
        return self


class Ahead:
    """Token weights from a self-teacher with feedback and hints."""

    name: ClassVar[str] = "ahead"
    kind: ClassVar[Kind] = "refiner"
    Params: ClassVar[type[AheadParams]] = AheadParams
    paper: ClassVar[Paper] = Paper(
        "AHEAD: Adaptive Hindsight with Environment-Augmented Distillation for Agentic RL", "2608.24114", "2026"
    )
    summary: ClassVar[str] = (
        "Weighs tokens by a self-teacher that reads the environment's answers, and hints on error steps."
    )
    neutral: ClassVar[Mapping[str, Any]] = {"lambda": 0.0}

    def __init__(self, params: AheadParams) -> None:
        self.params = params

    @property
    def asks_analyser(self) -> bool:
        """Whether a language model is asked for error steps."""
        return "llm" in self.params.detectors and self.params.hints

    def refine(
        self, groups: Sequence[Group], advantages: TokenAdvantages, tools: Tools, metrics: dict[str, float]
    ) -> TokenAdvantages:
        """The advantages within ±λε of what they were; those out of scope as they were.

        Raises:
            UsageError: the run offers no model to teach, or no analyser where one is asked for.
        """
        p = self.params
        lam = faded(p.lambda_, tools.step, p.warmdown)
        if lam == 0:
            return advantages
        errors = self._error_steps(groups, advantages, tools, metrics)
        notes = [
            [
                [
                    self.note(episode, t, found.get(t)) if self._in_scope(episode, a_TN) and np.any(a_N) else None
                    for t, a_N in enumerate(a_TN)
                ]
                for episode, a_TN, found in zip(group.episodes, a_ETN, found_E, strict=True)
            ]
            for group, a_ETN, found_E in zip(groups, advantages, errors, strict=True)
        ]
        began = time.perf_counter()
        raw = gaps(groups, notes, tools, self.name)
        metrics["ahead/teacher/seconds"] = time.perf_counter() - began
        result: TokenAdvantages = []
        for g, (group, a_ETN) in enumerate(zip(groups, advantages, strict=True)):
            result.append([])
            for e, (episode, a_TN) in enumerate(zip(group.episodes, a_ETN, strict=True)):
                scope_TN = [
                    action_tokens(tools.template, turn)
                    if p.token_scope == "action" and tools.template is not None and notes[g][e][t] is not None
                    else np.ones(turn.n_tokens, dtype=bool)
                    for t, turn in enumerate(episode.turns)
                ]
                delta_TN = centred(raw[g][e], scope_TN, p.center)
                result[-1].append(
                    tuple(
                        weighed(a_N, np.where(scope_N, d_N, 0.0), lam, p.epsilon, p.sign_mode)
                        if note is not None
                        else a_N
                        for a_N, d_N, scope_N, note in zip(a_TN, delta_TN, scope_TN, notes[g][e], strict=True)
                    )
                )
        metrics |= {"ahead/lambda": lam, **self._metrics(groups, notes, errors, raw, advantages, result)}
        return result

    def note(self, episode: Episode, t: int, hint: str | None) -> str | None:
        """What the teacher is told at a turn; never what came after its own answer."""
        turn = episode.turns[t]
        parts: list[str] = []
        if self.params.feedback:
            words = turn.next_observation.split()
            shown = " ".join(words[: self.params.max_words]) + (" …" if len(words) > self.params.max_words else "")
            parts.append(f"After your answer the environment will say: {shown}")
            parts.append("It takes the action." if turn.valid else "It does not recognise the action.")
            if t == len(episode.turns) - 1:
                parts.append(f"The task then ends in {'success' if episode.success else 'failure'}.")
        if self.params.hints and hint is not None:
            parts.append(f"Hint: {hint}")
        return "\n".join(parts) or None

    def label(self) -> str:
        """E.g. ``ahead(lambda=0.5,eps=0.5,failed,rules+peer)``; every parameter that is not the default."""
        p = self.params
        changed = p.changed()
        for shown in ("lambda_", "epsilon", "scope", "detectors"):
            changed.pop(shown, None)
        extra = [f"{name}={str(value).lower()}" for name, value in changed.items()]
        return f"ahead({','.join([f'lambda={p.lambda_:g}', f'eps={p.epsilon:g}', p.scope, '+'.join(p.detectors) or 'no-detector', *extra])})"

    def _in_scope(self, episode: Episode, advantages_TN: Sequence[np.ndarray]) -> bool:
        """Whether the teacher reads the episode; never where there is no advantage to weigh."""
        return any(np.any(a_N) for a_N in advantages_TN) and (self.params.scope == "all" or not episode.success)

    def _error_steps(
        self, groups: Sequence[Group], advantages: TokenAdvantages, tools: Tools, metrics: dict[str, float]
    ) -> list[list[Hints]]:
        """The hints of every episode: none for a success, or out of scope."""
        p = self.params
        read = [
            (g, e)
            for g, (group, a_ETN) in enumerate(zip(groups, advantages, strict=True))
            for e, (episode, a_TN) in enumerate(zip(group.episodes, a_ETN, strict=True))
            if not episode.success and self._in_scope(episode, a_TN)
        ]
        told: dict[tuple[int, int], Hints] = {}
        if self.asks_analyser:
            if tools.analyse is None:
                raise UsageError(
                    "ahead's detector llm asks an analyser, which this run does not offer: set method.analyser."
                )
            began = time.perf_counter()
            found = analyse([groups[g].episodes[e] for g, e in read], tools.analyse, p.max_hints)
            told = dict(zip(read, found.hints, strict=True))
            metrics |= {
                "ahead/analyser_calls": float(found.calls),
                "ahead/analyser_parse_fail": float(found.unread),
                "ahead/analyser/seconds": time.perf_counter() - began,
            }
        result: list[list[Hints]] = [[{} for _ in group.episodes] for group in groups]
        for g, e in read:
            episode = groups[g].episodes[e]
            result[g][e] = error_steps(groups[g], episode, p.detectors, p.max_hints, told.get((g, e)))
        return result

    def _metrics(
        self,
        groups: Sequence[Group],
        notes: Sequence[Sequence[Sequence[str | None]]],
        errors: Sequence[Sequence[Hints]],
        delta: TokenAdvantages,
        before: TokenAdvantages,
        after: TokenAdvantages,
    ) -> dict[str, float]:
        """Mean δ by outcome and by kind of step, the multipliers, and how much was hinted."""
        parts: dict[str, list[np.ndarray]] = {"success": [], "fail": [], "error": [], "routine": []}
        factors: list[np.ndarray] = []
        agreed: list[float] = []
        failed = hinted = covered = 0
        for g, group in enumerate(groups):
            for e, episode in enumerate(group.episodes):
                told = [t for t, note in enumerate(notes[g][e]) if note is not None]
                if told and not episode.success:
                    failed += 1
                    hinted += len(errors[g][e])
                    covered += bool(errors[g][e])
                for t in told:
                    d_N = delta[g][e][t]
                    parts["success" if episode.success else "fail"].append(d_N)
                    parts["error" if t in errors[g][e] else "routine"].append(d_N)
                    factors.append(after[g][e][t] / before[g][e][t])
                    agreed.append(float(np.sign(d_N.mean()) * np.sign(before[g][e][t].mean())))
        metrics = {f"ahead/delta_mean_{name}": float(np.concatenate(d).mean()) for name, d in parts.items() if d}
        if factors:
            all_N = np.concatenate([*parts["success"], *parts["fail"]])
            low, high = np.percentile(np.concatenate(factors), [5, 95])
            metrics |= {"ahead/mult_p05": float(low), "ahead/mult_p95": float(high)}
            metrics["ahead/agreement"] = float(np.mean(agreed))
            metrics["ahead/saturation"] = float(np.mean(np.abs(all_N) >= self.params.epsilon))
        if failed:
            metrics["ahead/error_steps_per_failed"] = hinted / failed
            metrics["ahead/hint_coverage"] = covered / failed
        return metrics


def weighed(
    advantage_N: np.ndarray, delta_N: np.ndarray, lam: float, epsilon: float, mode: Literal["aligned", "literal"]
) -> np.ndarray:
    """A (1 + λ s clip(δ, ±ε)), float64 [n]; s is the sign of A, or 1 in literal mode."""
    sign_N = np.sign(advantage_N) if mode == "aligned" else 1.0
    return advantage_N * (1.0 + lam * sign_N * np.clip(delta_N, -epsilon, epsilon))


def centred(
    delta_TN: Sequence[np.ndarray], scope_TN: Sequence[np.ndarray], over: Literal["none", "turn", "trajectory"]
) -> list[np.ndarray]:
    """δ less its mean over the tokens in scope of each turn, or of the whole episode."""
    if over == "none":
        return list(delta_TN)
    means = [d[s].mean() if s.any() else 0.0 for d, s in zip(delta_TN, scope_TN, strict=True)]
    if over == "trajectory":
        everything = [d[s] for d, s in zip(delta_TN, scope_TN, strict=True)]
        whole = np.concatenate(everything) if everything else np.zeros(0)
        means = [float(whole.mean()) if len(whole) else 0.0] * len(delta_TN)
    return [d - mean for d, mean in zip(delta_TN, means, strict=True)]
