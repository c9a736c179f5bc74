"""What makes decoding quick on a CPU: a cache with room to grow, and attention that shares keys between query heads.

Left to itself, transformers copies the whole cache at every token to append one column, and again to repeat each key head
for its query heads. On a CPU, where memory is the limit, that is more than half of a rollout's time
(``benchmarks/bench_rollout.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from agentcredit.attention import attending_by

if TYPE_CHECKING:
    import torch

_SPARE_COLUMNS = 128


def growing_cache(config: Any) -> Any:
    """A ``DynamicCache`` whose layers append in place. Layers with a sliding window stay transformers' own."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache(config=config)
    layer_class = _growing_layer()
    cache.layers = [layer_class() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


@contextmanager
def shared_heads(model: Any) -> Iterator[None]:
    """Within the block the model's SDPA attention reads each key head once for all of its query heads."""
    if model.config._attn_implementation != "sdpa":
        yield
        return
    with attending_by(model.config, "sdpa_shared_heads", _attention):
        yield


@cache
def _growing_layer() -> Any:
    import torch
    from transformers.cache_utils import DynamicLayer

    class GrowingLayer(DynamicLayer):
        """``keys`` and ``values`` are views of buffers with spare columns."""

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
                self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
            assert self.keys is not None
            assert self.values is not None
            self.keys = keys = self._appended("_key_buffer", self.keys, key_states)
            self.values = values = self._appended("_value_buffer", self.values, value_states)
            return keys, values

        def _appended(self, name: str, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            rows, heads, length, width = past.shape
            total = length + new.shape[2]
            buffer = getattr(self, name, None)
            # A view of another buffer: the cache was compacted, and its columns have to move here.
            if buffer is None or buffer.data_ptr() != past.data_ptr() or buffer.shape[2] < total:
                buffer = torch.empty((rows, heads, total + _SPARE_COLUMNS, width), dtype=new.dtype, device=new.device)
                buffer[:, :, :length] = past
                setattr(self, name, buffer)
            buffer[:, :, length:total] = new
            return buffer[:, :, :total]

    return GrowingLayer


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The SDPA attention of transformers, without repeating key and value heads. [B, W, H, D]. Without a mask it is causal."""
    from torch.nn.functional import scaled_dot_product_attention

    mixed = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        is_causal=attention_mask is None and query.shape[2] > 1,
        scale=scaling,
        enable_gqa=True,
    )
    return mixed.transpose(1, 2).contiguous(), None
