"""Sums over micro-batches from which an update's metrics are made."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from agentcredit.training.loss import PolicyTerms


class Tally:
    """Adds up losses and per-token values in float64, whatever the micro-batches, and without a graph."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._token_sums: defaultdict[str, float] = defaultdict(float)
        self._tokens: defaultdict[str, int] = defaultdict(int)
        self._largest: defaultdict[str, float] = defaultdict(float)

    def add_sums(self, **losses: torch.Tensor) -> None:
        """Adds a batch's share of each part of the loss."""
        for name, value in losses.items():
            self._sums[name] += float(value.detach())

    def add_tokens(self, **values_K: torch.Tensor) -> None:
        """Adds values of tokens, whose mean over all tokens is the metric."""
        for name, values in values_K.items():
            self._token_sums[name] += float(values.detach().double().sum())
            self._tokens[name] += values.numel()

    def add_policy(self, terms: PolicyTerms, entropy: torch.Tensor, gap: torch.Tensor | None) -> None:
        """Adds what is worth knowing of a batch's sampled tokens."""
        self.add_tokens(
            ratio_mean=terms.ratio, clip_high=terms.high, clip_low=terms.low, clip_dual=terms.dual, entropy=entropy
        )
        self._maximum("ratio_max", terms.ratio)
        if gap is not None:
            self.add_tokens(logprob_gap_mean=gap)
            self._maximum("logprob_gap_max", gap)

    def metrics(self, n_epochs: int) -> dict[str, float]:
        """Means over tokens, largest values, and the loss's parts as means of the passes."""
        parts = {name: value / n_epochs for name, value in self._sums.items()}
        means = {name: value / max(1, self._tokens[name]) for name, value in self._token_sums.items()}
        return {"loss": sum(parts.values()), **parts, **means, **self._largest}

    def _maximum(self, name: str, values: torch.Tensor) -> None:
        if values.numel():
            self._largest[name] = max(self._largest[name], float(values.detach().max()))
