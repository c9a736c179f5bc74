from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from agentcredit.training.rows import Row

VOCAB = 97


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def make_model() -> Callable[..., Any]:
    """A random Qwen2 of 2 layers and width 32; the same weights for the same seed."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def make(seed: int = 0, **overrides: Any) -> Any:
        torch.manual_seed(seed)
        shape = {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "initializer_range": 0.2,  # wide enough that distributions are far from uniform
        }
        return Qwen2ForCausalLM(Qwen2Config(**(shape | overrides))).eval()

    return make


@pytest.fixture
def make_rows() -> Callable[..., list[Row]]:
    """Dialogue-like rows of the given lengths: stretches of context and of sampled tokens take turns."""

    def make(
        lengths: list[int], seed: int = 0, restricted: float = 0.3, ce: float = 0.2, vocab: int = VOCAB
    ) -> list[Row]:
        rng = np.random.default_rng(seed)
        rows = []
        for length in lengths:
            ids = rng.integers(0, vocab, length)
            sampled = (np.arange(length) // 3) % 2 == 1
            allowed = tuple(
                tuple(sorted({int(ids[n]), *rng.integers(0, vocab, rng.integers(0, 9)).tolist()}))
                if sampled[n] and rng.random() < restricted
                else None
                for n in range(length)
            )
            weights = np.where(rng.random(length) < ce, rng.random(length) / sum(lengths), 0.0)
            weights[0] = 0.0
            rows.append(
                Row(
                    ids=ids.astype(np.int64),
                    sampled=sampled,
                    rollout_logprobs=np.where(sampled, -rng.random(length) * 4, 0).astype(np.float32),
                    advantage=np.where(sampled, rng.normal(), 0).astype(np.float32),
                    ce_weight=weights.astype(np.float32),
                    allowed=allowed,
                )
            )
        return rows

    return make


@pytest.fixture
def naive_logprobs() -> Callable[..., list[torch.Tensor]]:
    """Log-probabilities [N] of every token of every row, each row alone, over full float32 logits; token 0 gets 0."""

    def score(model: Any, rows: list[Row], temperature: float = 1.0) -> list[torch.Tensor]:
        scores = []
        for row in rows:
            logits = model(input_ids=torch.tensor(row.ids)[None]).logits[0].float() / temperature
            values = [torch.zeros(())]
            for n in range(1, len(row)):
                allowed = row.allowed[n] if row.allowed is not None else None
                line = logits[n - 1] if allowed is None else logits[n - 1][list(allowed)]
                place = int(row.ids[n]) if allowed is None else allowed.index(int(row.ids[n]))
                values.append(line[place] - torch.logsumexp(line, 0))
            scores.append(torch.stack(values))
        return scores

    return score
