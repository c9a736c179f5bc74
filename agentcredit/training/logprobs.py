"""Log-probabilities of given tokens, without ever holding float32 logits of all tokens over the vocabulary.

The backbone gives hidden states; those that predict a token the loss needs are selected, and the output head with its
log-softmax runs over them in chunks under activation checkpointing, so the backward pass goes chunk by chunk as well.
Tokens that were sampled among few allowed ids need only those ids' logits: their rows of the head are gathered, and the
log-softmax runs over them alone, which is the distribution that the rollout sampled from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from agentcredit.errors import UsageError
from agentcredit.training.forked import forked
from agentcredit.training.packing import MicroBatch

if TYPE_CHECKING:
    import torch

CHUNK_ELEMENTS = 1 << 24
"""Float32 elements that one chunk may hold (64 MiB): logits, or gathered rows of the head."""
_PROBE_TOLERANCE = 1e-4  # relative to the largest logit; a soft cap or a scale is far above it


class TokenScorer:
    """Log-probabilities and entropies of a micro-batch's tokens under a causal language model of transformers.

    Args:
        model: a model with ``get_decoder`` (hidden states after the last norm) and a linear output head.
        temperature: what logits are divided by, as in the rollout.
        chunk_elements: float32 elements of one chunk's logits.

    Raises:
        UsageError: the model's logits are more than its head on its hidden states (a soft cap, a scale).
    """

    def __init__(self, model: Any, temperature: float, chunk_elements: int = CHUNK_ELEMENTS) -> None:
        self.backbone = model.get_decoder()
        self.head = model.get_output_embeddings()
        self.temperature = temperature
        self.chunk_elements = chunk_elements
        self.device = self.head.weight.device
        # Flash attention has no arbitrary masks: there, shared contexts are written out instead.
        self.takes_masks = model.config._attn_implementation in ("sdpa", "eager")
        self._adds_mask = model.config._attn_implementation == "eager"  # to the scores, rather than choosing by it
        _probe(model, self.backbone, self.head)

    def __call__(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability (with graph where gradients are enabled) and entropy (without), float32 [K] each.

        Both are of the tempered distribution, over the allowed ids where the token has such.
        """
        return self.of_hidden(batch, self._hidden(batch)[self._tensor(batch.line_K), self._tensor(batch.source_K)])

    def of_hidden(self, batch: MicroBatch, hidden_KD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for hidden states [K, D] that are known already: those that predict the batch's tokens."""
        import torch
        from torch.utils.checkpoint import checkpoint

        target_K = self._tensor(batch.target_K)
        logprobs, entropies = [], []
        chunks = list(self._chunks(batch))
        # split, not slices: its backward is one concatenation, where every slice would fill a [K, D] of zeros
        for (start, stop, allowed), hidden in zip(chunks, hidden_KD.split([b - a for a, b, _ in chunks]), strict=True):
            if allowed is None:
                score, arguments = self._free, (hidden, target_K[start:stop])
            else:
                choice = self._tensor(batch.choice_K[start - batch.n_free : stop - batch.n_free])
                score, arguments = self._restricted, (hidden, self._tensor(allowed), choice)
            logprob, entropy = (
                checkpoint(score, *arguments, use_reentrant=False, preserve_rng_state=False)
                if torch.is_grad_enabled()
                else score(*arguments)
            )
            logprobs.append(logprob)
            entropies.append(entropy)
        if not chunks:  # no token to predict: empty, but part of the graph, so that a loss of 0 has its gradient of 0
            return hidden_KD.float().sum(dim=1), hidden_KD.detach().float().sum(dim=1)
        return torch.cat(logprobs), torch.cat(entropies)

    def _hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Hidden states [B, N, D] after the last norm."""
        import torch

        ids = self._tensor(batch.ids_BN)
        if batch.visible_BFN is None or batch.place_BN is None:
            # Padding stands to the right of every real token, so causal attention alone hides it: no mask is needed, and
            # the kernels without one are the fast ones.
            return self.backbone(input_ids=ids, use_cache=False).last_hidden_state
        mask = self._tensor(batch.visible_BFN[:, None])
        if self._adds_mask:
            rows, _, n_forks, n = mask.shape
            causal = torch.ones((n - n_forks, n), dtype=torch.bool, device=self.device).tril()
            mask = torch.cat([causal.expand(rows, 1, -1, -1), mask], dim=2)
            kind = self.head.weight.dtype
            mask = (~mask).to(kind) * torch.finfo(kind).min
        with nullcontext() if self._adds_mask else forked(self.backbone.config):
            return self.backbone(
                input_ids=ids,
                attention_mask=mask,
                position_ids=self._tensor(batch.place_BN),
                use_cache=False,
            ).last_hidden_state

    def _chunks(self, batch: MicroBatch) -> Iterator[tuple[int, int, np.ndarray | None]]:
        """(start, stop, None) over the free tokens, then (start, stop, allowed ids padded with -1) over the others."""
        n_vocab, width = self.head.weight.shape
        step = max(1, self.chunk_elements // n_vocab)
        for start in range(0, batch.n_free, step):
            yield start, min(start + step, batch.n_free), None
        counts = [len(allowed) for allowed in batch.allowed_K]  # ascending
        start = 0
        while start < len(counts):
            stop = start + 1
            while stop < len(counts) and (stop + 1 - start) * counts[stop] * width <= self.chunk_elements:
                stop += 1
            padded = np.full((stop - start, counts[stop - 1]), -1, dtype=np.int64)
            for place, allowed in enumerate(batch.allowed_K[start:stop]):
                padded[place, : len(allowed)] = allowed
            yield batch.n_free + start, batch.n_free + stop, padded
            start = stop

    def _free(self, hidden_CD: torch.Tensor, target_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._choose(self.head(hidden_CD), target_C)

    def _restricted(
        self, hidden_CD: torch.Tensor, allowed_CA: torch.Tensor, choice_C: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        import torch.nn.functional as F

        ids = allowed_CA.clamp(min=0)
        logits = (F.embedding(ids, self.head.weight) @ hidden_CD.unsqueeze(2)).squeeze(2)
        if self.head.bias is not None:
            logits = logits + self.head.bias[ids]
        return self._choose(logits.masked_fill(allowed_CA < 0, float("-inf")), choice_C)

    def _choose(self, logits: torch.Tensor, place_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of the given places, and the entropy of the whole."""
        import torch

        logprobs = (logits.float() / self.temperature).log_softmax(dim=-1)
        chosen = logprobs.gather(1, place_C.unsqueeze(1)).squeeze(1)
        # Last, because the recomputation in the backward pass ends once it has what the graph needs.
        with torch.no_grad():
            entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)
        return chosen, entropy

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        import torch

        return torch.as_tensor(values, device=self.device)


def _probe(model: Any, backbone: Callable[..., Any], head: Any) -> None:
    """Checks on three tokens that the model's logits are its head applied to its backbone's hidden states."""
    import torch

    if not isinstance(head, torch.nn.Linear):
        raise UsageError(f"Model {type(model).__name__} has no linear output head, which training needs.")
    ids = torch.tensor([[0, 1, 2]], device=head.weight.device) % head.weight.shape[0]
    training = model.training
    model.eval()
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits.float()
        parts = head(backbone(input_ids=ids, use_cache=False).last_hidden_state).float()
    model.train(training)
    difference = float((whole - parts).abs().max())
    if not difference <= _PROBE_TOLERANCE * max(1e-6, float(whole.abs().max())):
        raise UsageError(
            f"Model {type(model).__name__} changes its logits after the output head (by up to {difference:.3g} on a "
            "probe; a soft cap or a logit scale), which the learner does not reproduce; choose a model of the Qwen2 "
            "or Llama kind with --model."
        )
