"""Attention of lines whose forks stand behind their roots: causal among the roots, by a mask for the forks alone.

One mask over everything would have every root attend to every column, and no kernel that knows causality: half as slow
again where forks are a third of a line.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from agentcredit.attention import attending_by

if TYPE_CHECKING:
    import torch


def forked(config: Any) -> AbstractContextManager[None]:
    """Within the block a model's SDPA attention takes masks [B, 1, F, N] of the last F of N tokens, the others being causal."""
    return attending_by(config, "sdpa_forked", _attention)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Queries, keys and values [B, H, N, D] to what is mixed, [B, N, H, D]."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    roots = query.shape[2] - attention_mask.shape[2]
    among_roots = query[:, :, :roots], key[:, :, :roots], value[:, :, :roots]
    of_roots, _ = sdpa_attention_forward(module, *among_roots, attention_mask=None, **kwargs)
    of_forks, _ = sdpa_attention_forward(module, query[:, :, roots:], key, value, attention_mask, **kwargs)
    return torch.cat([of_roots, of_forks], dim=1), None
