from __future__ import annotations

from typing import Any

import pytest

from agentcredit.config import TinyConfig
from agentcredit.policies.dialogue import Template
from agentcredit.policies.tiny import new_model, train_tokenizer

WORDS = [
    "go",
    "to",
    "take",
    "from",
    "open",
    "close",
    "the",
    "fridge",
    "countertop",
    "apple",
    "1",
    "2",
    "3",
    "you",
    "see",
    "a",
    "and",
    "arrive",
    "at",
    "find",
    "put",
    "in",
]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    texts = [" ".join(WORDS[k:] + WORDS[:k]) for k in range(len(WORDS))] * 3
    return train_tokenizer(texts, 512)


@pytest.fixture(scope="session")
def template(tokenizer: Any) -> Template:
    return Template(tokenizer, "tiny")


@pytest.fixture(scope="session")
def model(tokenizer: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = new_model(TinyConfig(hidden=32, layers=2, heads=4, kv_heads=2), tokenizer, 512)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # a random network of this size is nearly uniform; this one has preferences
    return model.eval()
