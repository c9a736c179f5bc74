"""Drawing the next token of each row from its logits, with the noise given; free or among allowed ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def draw(
    logits: torch.Tensor,
    allowed: Sequence[tuple[int, ...] | None],
    uniform: np.ndarray,
    temperature: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """One token per row by inverting the cumulative distribution at ``uniform``.

    Args:
        logits: [B, V].
        allowed: per row the sorted ids to choose from, or None for all V.
        uniform: float64 [B] in [0, 1).
        temperature: float64 [B]; 0 takes the likeliest token (the smallest id on a tie).

    Returns:
        ids int64 [B], and float32 [B] log-probabilities under the tempered, restricted distribution (0 when greedy).
    """
    ids = np.zeros(len(allowed), dtype=np.int64)
    logprobs = np.zeros(len(allowed), dtype=np.float32)
    free = [row for row, choice in enumerate(allowed) if choice is None]
    bound = [row for row, choice in enumerate(allowed) if choice is not None]
    if free:
        ids[free], logprobs[free] = _invert(logits[free], uniform[free], temperature[free])
    if bound:
        choices = [allowed[row] or () for row in bound]
        width = max(len(choice) for choice in choices)
        padded = np.array([[*choice, *[-1] * (width - len(choice))] for choice in choices])
        index = logits.new_tensor(padded.clip(min=0), dtype=_int64())
        picked = logits[bound].gather(1, index)
        picked = picked.masked_fill(index.new_tensor(padded) < 0, float("-inf"))
        places, logprobs[bound] = _invert(picked, uniform[bound], temperature[bound])
        ids[bound] = padded[np.arange(len(bound)), places]
    return ids, logprobs


def _invert(logits: torch.Tensor, uniform: np.ndarray, temperature: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    greedy = temperature == 0
    scale = logits.new_tensor(np.where(greedy, 1.0, temperature)).unsqueeze(1)
    logprobs = torch.log_softmax(logits.float() / scale, dim=-1)
    # float64 here: the cumulative sum over a large vocabulary would otherwise lose the rare tokens.
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    target = torch.as_tensor(uniform, device=logits.device).unsqueeze(1) * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
    places = torch.where(torch.as_tensor(greedy, device=logits.device), logits.argmax(dim=-1), places)
    chosen = logprobs.gather(1, places.unsqueeze(1)).squeeze(1)
    return places.cpu().numpy(), np.where(greedy, 0.0, chosen.detach().cpu().numpy()).astype(np.float32)


def _int64() -> torch.dtype:
    import torch

    return torch.int64
