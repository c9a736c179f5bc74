"""A model of transformers that computes its attention by a function of ours, for the length of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def attending_by(config: Any, name: str, attention: Callable[..., Any]) -> Iterator[None]:
    """Within the block ``attention`` stands in for SDPA, and takes masks of SDPA's kind.

    A backward pass may come after the block, unless it computes the forward pass again (gradient checkpointing).

    Args:
        config: of the model.
        name: what transformers is to know the function by; the same name is the same function.
        attention: of module, query, key, value [B, H, N, D] and mask to (what is mixed [B, N, H, D], None).
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before
