"""AlignOPSD: match siblings' turns by decision, hear their teachers, and share the credit by segments (docs/methods/alignopsd.md).

1. At every turn a teacher (the rollout's weights, told how a sibling succeeded) thinks and answers for itself.
2. Turns of other siblings whose teacher's thought is near what was thought here are *sources*: the response is scored in
   their contexts too, and corrects the teacher's opinion of it in its own (:mod:`agentcredit.methods.correspondence`).
3. Where the profile of sources changes between turns, the episode is cut; its credit is shared segment → turn → token by
   what the teachers prefer, and conserved (:mod:`agentcredit.methods.segments`):

    A'_t = A ((1 − μ) + μ κ_t)        Σ N_t κ_t = N

From the paper's public code; its numbers are reproduced by the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group, Turn
from agentcredit.errors import UsageError
from agentcredit.methods.alignopsd_metrics import source_metrics, weight_metrics
from agentcredit.methods.base import Conversation, Kind, Paper, Params, TokenAdvantages, Tools
from agentcredit.methods.correspondence import (
    Aggregation,
    Distance,
    Sources,
    corrected,
    cosines,
    profiles,
    same_action,
    select_sources,
    structural_mask,
    turn_distances,
    weigh_sources,
)
from agentcredit.methods.segments import Weighting, bounded_densities, segment, threshold_of, turn_densities
from agentcredit.methods.teacher import (
    BOUND,
    action_list,
    answering,
    context_rows,
    success_of_another,
    teacher_prompt,
)
from agentcredit.policies.actions import parse
from agentcredit.training.rows import Row


class AlignopsdParams(Params):
    """Parameters of AlignOPSD; defaults are those of ALFWorld 7B unless said otherwise."""

    gamma: float | Literal["auto"] = Field(
        default="auto",
        validation_alias=AliasChoices("gamma", "γ"),
        description="Least similarity of a source (published 0.65 … 0.80 for Qwen3-Embedding); auto: a quantile of the first step's similarities.",
    )
    gamma_quantile: float = Field(default=0.8, gt=0, lt=1, description="With gamma=auto: which quantile (ours).")
    top_k: int = Field(
        default=3,
        ge=1,
        validation_alias=AliasChoices("top_k", "K"),
        description="Sources of a turn at most, one per sibling.",
    )
    source_temperature: float = Field(
        default=0.1,
        gt=0,
        validation_alias=AliasChoices("source_temperature", "tau_a"),
        description="τ_a of the sources' weights.",
    )
    alpha_max: float = Field(
        default=0.8,
        ge=0,
        le=1,
        validation_alias=AliasChoices("alpha_max", "α_max"),
        description="How much sources count at full confidence; 0: the teacher in its own context alone (ablation A).",
    )
    aggregation: Aggregation = Field(
        default="probability_mixture",
        description="Sources' opinions as a mixture of probabilities, or a mean of log-probabilities.",
    )
    action_filter: bool = Field(
        default=False, description="Keep only sources whose teacher also acted alike (published for 3B)."
    )
    action_similarity: float = Field(default=0.8, description="With action_filter: least cosine of the two actions.")
    profile_temperature: float = Field(
        default=0.1,
        gt=0,
        validation_alias=AliasChoices("profile_temperature", "tau_p"),
        description="τ_p of the profiles.",
    )
    profile_distance: Distance = Field(default="jsd", description="How far two neighbouring profiles are apart.")
    quantile: float = Field(
        default=0.8, gt=0, lt=1, description="Cut where the distance is above this quantile of the batch's."
    )
    threshold_min: float = Field(
        default=0.01, ge=0, description="Least threshold, and least distance that guides a cut."
    )
    threshold_max: float = Field(default=0.1, ge=0, description="Largest threshold.")
    shortest: int = Field(
        default=2, ge=1, validation_alias=AliasChoices("shortest", "L_min"), description="Turns of a segment at least."
    )
    longest: int = Field(
        default=8, ge=1, validation_alias=AliasChoices("longest", "L_max"), description="Turns of a segment at most."
    )
    credit_temperature: float = Field(
        default=0.5,
        gt=0,
        validation_alias=AliasChoices("credit_temperature", "T_c"),
        description="T_c of the shares: smaller moves more credit.",
    )
    mixing: float = Field(
        default=0.5,
        ge=0,
        le=1,
        validation_alias=AliasChoices("mixing", "mu", "μ"),
        description="Share of the credit that moves; 0 gives the base.",
    )
    weighting: Weighting = Field(default="capped", description="Densities in [0, cap], or in 1 ± band.")
    cap: float = Field(
        default=4.0, gt=1, validation_alias=AliasChoices("cap", "kappa_max"), description="Largest density."
    )
    band: float = Field(default=0.2, gt=0, lt=1, description="With weighting=bounded: half the width.")
    allocation: Literal["segment", "turn", "token", "random"] = Field(
        default="segment",
        description="Share credit by segments; or, as ablations, over turns (C), tokens (B), or random segments (D).",
    )


@dataclass
class _Block:
    """The turns of one group: M of them, as the correspondence sees them."""

    group: int
    turns: list[tuple[int, int]]
    note_M: list[str | None]
    thought_M: list[str] = field(default_factory=list)
    action_M: list[str] = field(default_factory=list)
    similarity_MM: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    structural_MM: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    sources_M: list[Sources] = field(default_factory=list)


class Alignopsd:
    """Turn weights from teachers of matching decisions, conserved over each episode."""

    name: ClassVar[str] = "alignopsd"
    kind: ClassVar[Kind] = "refiner"
    Params: ClassVar[type[AlignopsdParams]] = AlignopsdParams
    paper: ClassVar[Paper] = Paper(
        "Beyond Timestamps: Decision-Aligned On-Policy Distillation for Long-Horizon Agents", "2609.33391", "2026"
    )
    summary: ClassVar[str] = (
        "Shares an episode's credit over segments of decisions, by teachers of siblings that decided alike."
    )
    neutral: ClassVar[Mapping[str, Any]] = {"mixing": 0.0}
    conserves: ClassVar[str] = "episode"

    def __init__(self, params: AlignopsdParams) -> None:
        if params.longest < 2 * params.shortest - 1:
            raise UsageError(
                f"alignopsd: longest is {params.longest}, less than 2 · shortest − 1 = {2 * params.shortest - 1}: "
                "a segment that is too long could not be cut."
            )
        self.params = params
        self.gamma = None if params.gamma == "auto" else params.gamma

    def refine(
        self, groups: Sequence[Group], advantages: TokenAdvantages, tools: Tools, metrics: dict[str, float]
    ) -> TokenAdvantages:
        """The advantages times the turns' weights; groups without any advantage cost nothing.

        Raises:
            UsageError: the run offers no model to generate and score with, or no encoder.
        """
        if self.params.mixing == 0:
            return advantages
        asked = [g for g, a_ETN in enumerate(advantages) if any(np.any(a_N) for a_TN in a_ETN for a_N in a_TN)]
        if not asked:
            return advantages
        template, generate, embed, logprobs = tools.template, tools.generate, tools.embed, tools.logprobs
        if template is None or generate is None or embed is None or logprobs is None:
            raise UsageError(
                "alignopsd lets the policy's own model think again and compares thoughts with a sentence encoder, "
                "which this run does not offer."
            )
        blocks = [_block(groups[g], g) for g in asked]
        self._think(blocks, groups, template, generate, embed)
        self._match(blocks, groups, embed)
        gap_TL = self._gaps(blocks, groups, template, logprobs)
        result = list(advantages)
        weights, segments, kinds = self._weights(blocks, groups, advantages, gap_TL, tools.rng)
        for block in blocks:
            g = block.group
            result[g] = [
                tuple(a_N * weights[g, e][t] for t, a_N in enumerate(a_TN)) for e, a_TN in enumerate(advantages[g])
            ]
        metrics |= {f"alignopsd/cuts_{kind}": float(count) for kind, count in kinds.items()}
        metrics |= weight_metrics([w_N for w_TN in weights.values() for w_N in w_TN], segments)
        metrics |= source_metrics([(block.turns, block.sources_M) for block in blocks])
        metrics["alignopsd/gap_mean"] = float(np.mean(np.concatenate(list(gap_TL.values()))))
        if self.gamma is not None:
            metrics["alignopsd/gamma"] = self.gamma
        return result

    def label(self) -> str:
        """E.g. ``alignopsd(gamma=auto,K=3,mu=0.5)``; every other parameter that is not the default."""
        p = self.params
        changed = p.changed()
        for shown in ("gamma", "top_k", "mixing"):
            changed.pop(shown, None)
        extra = [f"{name}={str(value).lower()}" for name, value in changed.items()]
        gamma = p.gamma if p.gamma == "auto" else f"{p.gamma:g}"
        return f"alignopsd({','.join([f'gamma={gamma}', f'K={p.top_k}', f'mu={p.mixing:g}', *extra])})"

    def state_dict(self) -> dict[str, Any]:
        """The calibrated γ."""
        return {"gamma": self.gamma}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        self.gamma = state["gamma"]

    def _think(
        self, blocks: Sequence[_Block], groups: Sequence[Group], template: Conversation, generate: Any, embed: Any
    ) -> None:
        """What the teacher thinks and does at every turn, and how near that is to what was thought there."""
        prompts = [
            (teacher_prompt(template, episode, t, note), (episode.task.id, episode.sibling, t))
            for b in blocks
            for (e, t), note in zip(b.turns, b.note_M, strict=True)
            for episode in [groups[b.group].episodes[e]]
        ]
        answers = iter(generate([prompt for prompt, _ in prompts], [key for _, key in prompts]))
        for block in blocks:
            for _ in block.turns:
                said = parse(template.decode(next(answers).ids))
                block.thought_M.append(" ".join(said.thought.split()))
                block.action_M.append(said.action)
            own = [" ".join(_turn(groups, block, m).thought.split()) for m in range(len(block.turns))]
            block.structural_MM = structural_mask(
                [e for e, _ in block.turns],
                [bool(thought) for thought in block.thought_M],
                [bool(thought) for thought in own],
            )
            block.similarity_MM = cosines(embed(block.thought_M), embed(own))

    def _match(self, blocks: Sequence[_Block], groups: Sequence[Group], embed: Any) -> None:
        p = self.params
        if self.gamma is None:
            pairs = np.concatenate([block.similarity_MM[block.structural_MM] for block in blocks])
            if not len(pairs):
                return self._no_sources(blocks)
            self.gamma = float(np.quantile(pairs, p.gamma_quantile))
        for block in blocks:
            rollout = [e for e, _ in block.turns]
            selected = select_sources(block.similarity_MM, block.structural_MM, rollout, self.gamma, p.top_k)
            if p.action_filter:
                done = [_turn(groups, block, m) for m in range(len(block.turns))]
                alike_MM = cosines(embed(block.action_M), embed([turn.action for turn in done]))
                web = groups[block.group].task.env == "webshop"
                selected = [
                    [
                        s
                        for s in sources
                        if same_action(
                            alike_MM[s, t],
                            p.action_similarity,
                            block.action_M[s],
                            done[t].action,
                            bool(block.action_M[s]) and done[t].valid,
                            web,
                        )
                    ]
                    for t, sources in enumerate(selected)
                ]
            block.sources_M = [
                weigh_sources(sources, block.similarity_MM[:, t], self.gamma, p.source_temperature, p.alpha_max)
                for t, sources in enumerate(selected)
            ]
        return None

    @staticmethod
    def _no_sources(blocks: Sequence[_Block]) -> None:
        for block in blocks:
            block.sources_M = [Sources((), np.zeros(0), 0.0, 0.0)] * len(block.turns)

    def _gaps(
        self, blocks: Sequence[_Block], groups: Sequence[Group], template: Conversation, logprobs: Any
    ) -> dict[tuple[int, int, int], np.ndarray]:
        """Δ of every token: the corrected teacher's log-probability less the rollout's. One pass for own and cross scores."""
        contexts = context_rows(groups)
        rows: list[Row] = list(contexts.rows)
        place: dict[tuple[int, int, int], int] = {}
        for b, block in enumerate(blocks):
            for t, (e, turn) in enumerate(block.turns):
                place[b, t, t] = len(rows)
                rows.append(
                    contexts.continued(template, (block.group, e, turn), block.note_M[t], _turn(groups, block, t))
                )
        for b, block in enumerate(blocks):
            for t, sources in enumerate(block.sources_M):
                for s in sources.index_K if sources.alpha > 0 else ():
                    own = place[b, s, s]  # its context and note are those that t is judged in
                    place[b, s, t] = len(rows)
                    rows.append(answering(own, rows[own], _turn(groups, block, s), _turn(groups, block, t)))
        scores = logprobs(rows)
        gaps: dict[tuple[int, int, int], np.ndarray] = {}
        for b, block in enumerate(blocks):
            for t, sources in enumerate(block.sources_M):
                turn = _turn(groups, block, t)

                def said(s: int, b: int = b, t: int = t, n: int = turn.n_tokens) -> np.ndarray:
                    return scores[place[b, s, t]][len(scores[place[b, s, t]]) - n :].astype(np.float64)

                heard = sources if sources.alpha > 0 else Sources((), np.zeros(0), 0.0, 0.0)
                teacher_L = corrected(said(t), [said(s) for s in heard.index_K], heard, self.params.aggregation)
                gaps[block.group, *block.turns[t]] = np.clip(
                    np.nan_to_num(teacher_L - turn.response_logprobs, nan=0.0), -BOUND, BOUND
                )
        return gaps

    def _weights(
        self,
        blocks: Sequence[_Block],
        groups: Sequence[Group],
        advantages: TokenAdvantages,
        gap_TL: Mapping[tuple[int, int, int], np.ndarray],
        rng: np.random.Generator,
    ) -> tuple[dict[tuple[int, int], list[np.ndarray]], list[int], dict[str, int]]:
        """Per (group, episode) the factor of each turn's tokens; lengths of segments; cuts by kind."""
        p = self.params
        distances: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        for block in blocks:
            profile_MM, valid_M = profiles(
                block.similarity_MM,
                block.structural_MM,
                self.gamma if self.gamma is not None else 2.0,
                p.profile_temperature,
            )
            for e in range(len(groups[block.group].episodes)):
                turns = [m for m, (own, _) in enumerate(block.turns) if own == e]
                distances[block.group, e] = turn_distances(
                    profile_MM, valid_M, block.structural_MM, turns, p.profile_distance
                )
        counted = [d[c] for d, c in distances.values()]
        threshold = threshold_of(
            np.concatenate(counted) if counted else np.zeros(0), p.quantile, p.threshold_min, p.threshold_max
        )
        weights: dict[tuple[int, int], list[np.ndarray]] = {}
        lengths: list[int] = []
        kinds = {"semantic": 0, "guided": 0, "forced": 0}
        for (g, e), (distance_T, counts_T) in distances.items():
            a_TN = advantages[g][e]
            delta_TN = [gap_TL[g, e, t] for t in range(len(a_TN))]
            sign_T = np.array([np.sign(a_N[0]) if len(a_N) else 0.0 for a_N in a_TN])
            live = [t for t, d_N in enumerate(delta_TN) if len(d_N)]
            weights[g, e] = [np.ones(len(a_N)) for a_N in a_TN]
            if not live:
                continue
            if p.allocation == "token":
                score = np.concatenate([sign_T[t] * delta_TN[t] for t in live])
                ones = np.ones(len(score))
                raw = turn_densities(score, ones, [(0, len(score))], p.credit_temperature)
                density = bounded_densities(raw, ones, p.weighting, p.cap, p.band)
                cuts = np.cumsum([len(delta_TN[t]) for t in live])[:-1]
                for t, part in zip(live, np.split(density, cuts), strict=True):
                    weights[g, e][t] = part
                continue
            score_T = np.array([sign_T[t] * float(delta_TN[t].mean()) for t in live])
            tokens_T = np.array([float(len(delta_TN[t])) for t in live])
            parts = self._segments(distance_T[live], counts_T[live], threshold, kinds, rng)
            lengths += [b - a for a, b in parts]
            raw = turn_densities(score_T, tokens_T, parts, p.credit_temperature)
            density = bounded_densities(raw, tokens_T, p.weighting, p.cap, p.band)
            for t, kappa in zip(live, density, strict=True):
                weights[g, e][t] = np.full(len(a_TN[t]), (1.0 - p.mixing) + p.mixing * kappa)
        return weights, lengths, kinds

    def _segments(
        self,
        distance_T: np.ndarray,
        counts_T: np.ndarray,
        threshold: float,
        kinds: dict[str, int],
        rng: np.random.Generator,
    ) -> Sequence[tuple[int, int]]:
        p = self.params
        n = len(distance_T)
        if p.allocation == "turn":
            return [(0, n)]
        if p.allocation == "random":
            return random_segments(n, p.shortest, p.longest, rng)
        made = segment(distance_T, counts_T, threshold, p.shortest, p.longest, p.threshold_min)
        for kind in kinds:
            kinds[kind] += len(getattr(made, kind))
        return made.segments


def random_segments(n: int, shortest: int, longest: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Segments of random lengths in [shortest, longest], the last one as short as it comes (the ablation's control)."""
    cuts = [0]
    while cuts[-1] < n:
        step = int(rng.integers(shortest, longest + 1))
        rest = n - cuts[-1] - step
        cuts.append(n if rest < shortest and n - cuts[-1] <= longest else min(n, cuts[-1] + step))
    return list(pairwise(cuts))


def _block(group: Group, g: int) -> _Block:
    turns, notes = [], []
    # By sibling number, not by place: ties between sources go to the smaller one whatever the order of the batch.
    for e, episode in sorted(enumerate(group.episodes), key=lambda one: one[1].sibling):
        peer = success_of_another(group, episode)
        note = f"Another attempt at this task succeeded by: {action_list(peer)}" if peer else None
        for t in range(len(episode.turns)):
            turns.append((e, t))
            notes.append(note)
    return _Block(g, turns, notes)


def _turn(groups: Sequence[Group], block: _Block, m: int) -> Turn:
    e, t = block.turns[m]
    return groups[block.group].episodes[e].turns[t]
