"""The policy loss: three streams, each with its own global denominator (docs/training.md).

    L = Σ_i w_i ℓ_i  +  Σ_i v_i nll_i  +  β Σ_i w_i kl_i

``w_i`` is the aggregation's weight of sampled token i: token-mean gives every token 1/(sampled tokens). What a method had
sampled beside the episodes is a part of its own (``Row.part``), with its own counts and a weight. ``w_i`` is computed
over all rows of an update before the first micro-batch, so the gradient is the same for any micro-batch size and any
number of ranks: each just adds up its own tokens. ``v_i`` is the cross-entropy weight as the method gave it; a method
normalises its own stream (Σ v = 1 in CoPE), so the denominator here is 1.

The conventions are verl 0.9.1's and agree with it token by token (tests/data/vectors).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentcredit.config import LossConfig
from agentcredit.errors import UsageError
from agentcredit.training.rows import Row

if TYPE_CHECKING:
    import torch

LOG_RATIO_BOUND = 20.0
"""Clamp of every difference of log-probabilities before it is exponentiated (verl 0.9.1)."""
KL_BOUND = 10.0
"""Clamp of the k3 estimate of one token (verl)."""


@dataclass(frozen=True)
class Denominators:
    """What the aggregations divide by: counts over all rows of an update, on every rank.

    ``tokens``  sampled tokens. ``rows``: rows with at least one. ``longest``: tokens of the longest row.
    """

    tokens: int
    rows: int
    longest: int

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Denominators:
        """Counts of these rows."""
        counts = [(int(row.sampled.sum()), len(row)) for row in rows]
        return cls(
            tokens=sum(sampled for sampled, _ in counts),
            rows=sum(sampled > 0 for sampled, _ in counts),
            longest=max((length for _, length in counts), default=0),
        )

    def merged(self, other: Denominators) -> Denominators:
        """Counts of both, for rows that are spread over ranks."""
        return Denominators(self.tokens + other.tokens, self.rows + other.rows, max(self.longest, other.longest))


def token_weights(sampled: np.ndarray, totals: Denominators, config: LossConfig) -> np.ndarray:
    """Weight of each token of one row in the policy loss, float64 [N]; 0 where not sampled.

    Sequences are rows: episodes in the dialogue layout, turns in the window layout. Rows without a sampled token are
    left out of every mean over rows. ``seq-mean-token-sum-norm`` divides the mean over rows by a constant length
    (Dr. GRPO); the older verl-agent code takes the sum over rows, which differs by their number.
    """
    n_sampled = int(sampled.sum())
    if n_sampled == 0:
        return np.zeros(len(sampled))
    per_token = {
        "token-mean": 1 / totals.tokens,
        "seq-mean-token-mean": 1 / (totals.rows * n_sampled),
        "seq-mean-token-sum": 1 / totals.rows,
        "seq-mean-token-sum-norm": 1 / (totals.rows * (config.norm_length or totals.longest)),
    }[config.aggregation]
    return np.where(sampled, per_token, 0.0)


@dataclass(frozen=True)
class PolicyTerms:
    """Per sampled token: the loss (with graph), the ratio, and which bound held it (all without).

    ``high``: A > 0 and the ratio above 1 + clip_high. ``low``: A < 0 and the ratio below 1 − clip_low. ``dual``: A < 0
    and the loss held at c·|A|. In all three the token has no gradient.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    high: torch.Tensor
    low: torch.Tensor
    dual: torch.Tensor


def policy_terms(logprob: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, config: LossConfig) -> PolicyTerms:
    """PPO's clipped surrogate, with a higher upper clip (DAPO) and the dual clip for A < 0 (Ye et al. 2020).

    Args:
        logprob: float [K] under the policy being trained, with graph.
        old: float [K] under the behaviour policy.
        advantage: float [K].
        config: clip_low, clip_high, dual_clip.
    """
    import torch

    ratio = (logprob - old).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    loss = torch.maximum(plain, clipped)
    held = (clipped > plain).detach()
    dual = torch.zeros_like(held)
    if config.dual_clip:
        bound = -config.dual_clip * advantage
        dual = (advantage < 0) & (loss > bound).detach()
        loss = torch.where(advantage < 0, torch.minimum(loss, bound), loss)
    return PolicyTerms(
        loss=loss, ratio=ratio.detach(), high=held & (advantage > 0), low=held & (advantage < 0), dual=dual
    )


def kl_k3(logprob: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(policy ‖ reference) per sampled token, float [K] ≥ 0.

    ``exp(u) − u − 1`` with u = reference − logprob, clamped to ±20, the value to 10; a clamped token has no gradient.
    As a loss term its expected gradient is that of the *forward* KL(reference ‖ policy), as in GRPO's own formula:
    it pulls towards the reference, and is not the gradient of what it estimates.
    """
    u = (reference - logprob).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return (u.exp() - u - 1).clamp(-KL_BOUND, KL_BOUND)


def check(config: LossConfig) -> None:
    """Refuses values that the formulas have no meaning for.

    Raises:
        UsageError: a dual clip of at most 1, which would hold on-policy tokens too; a lower clip above 1.
    """
    if 0 < config.dual_clip <= 1:
        raise UsageError(
            f"loss.dual_clip is {config.dual_clip:g}; give a value above 1, or 0 to leave the dual clip out."
        )
    if config.clip_low > 1:
        raise UsageError(f"loss.clip_low is {config.clip_low:g}; a ratio is never negative, so give at most 1.")


def carries_signal(row: Row) -> bool:
    """Whether a row can move the weights when no KL is asked for: any advantage or cross-entropy weight."""
    return bool(np.any(row.advantage != 0) or np.any(row.ce_weight != 0))


def weights_of(rows: Sequence[Row], config: LossConfig) -> list[np.ndarray]:
    """:func:`token_weights` of every row times its weight, the denominators counted over all rows of its part."""
    totals = {part: Denominators.of(row for row in rows if row.part == part) for part in {row.part for row in rows}}
    return [row.weight * token_weights(row.sampled, totals[row.part], config) for row in rows]
