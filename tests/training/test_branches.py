"""Scoring rows that continue one another: what is computed once gives what is computed again."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from agentcredit.config import LossConfig, OptimConfig, TrainConfig
from agentcredit.training.branches import branch_logprobs
from agentcredit.training.learner import Learner
from agentcredit.training.logprobs import TokenScorer
from agentcredit.training.rows import Row


def continued(make_rows: Any, length: int, seed: int, prefix: tuple[int, int]) -> Row:
    (row,) = make_rows([length + 1], seed=seed)  # a first token of an episode is never sampled; here it may be
    return dataclasses.replace(
        row,
        ids=row.ids[1:],
        sampled=row.sampled[1:],
        rollout_logprobs=row.rollout_logprobs[1:],
        advantage=row.advantage[1:],
        ce_weight=row.ce_weight[1:],
        allowed=None if row.allowed is None else row.allowed[1:],
        prefix=prefix,
    )


def silent(row: Row) -> Row:
    return dataclasses.replace(row, sampled=np.zeros(len(row), dtype=bool), allowed=None)


@pytest.fixture
def rows(make_rows: Any) -> list[Row]:
    """Two episodes that are only context, one that is scored; continuations of these, and of continuations."""
    one, two, three = make_rows([30, 41, 12])
    return [
        silent(one),
        silent(two),
        three,
        continued(make_rows, 9, 1, (0, 1)),
        continued(make_rows, 6, 2, (0, 30)),
        continued(make_rows, 7, 3, (1, 17)),
        continued(make_rows, 5, 4, (3, 4)),  # 1 token of the episode, 3 of what continued it
        continued(make_rows, 5, 5, (3, 10)),
        continued(make_rows, 4, 6, (7, 12)),
        continued(make_rows, 8, 7, (2, 0)),  # continues nothing
    ]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("budget", [20, 4096])
def test_scores_are_those_of_rows_written_out(make_model: Any, rows: list[Row], budget: int, attention: str):
    model = make_model(attn_implementation=attention)
    scorer = TokenScorer(model, 0.7)
    rows[-1] = dataclasses.replace(rows[-1], sampled=np.r_[False, rows[-1].sampled[1:]])
    shared = branch_logprobs(model, scorer, rows, budget)
    written = Learner(model, LossConfig(), OptimConfig(), TrainConfig(share_prefixes=False), 0.7).logprobs(rows)
    assert sum(int((scores != 0).sum()) for scores in written) > 20
    for got, expected in zip(shared, written, strict=True):
        assert got == pytest.approx(expected, abs=2e-5)


def test_a_first_token_without_a_context_cannot_be_predicted(make_model: Any, make_rows: Any):
    model = make_model()
    (row,) = make_rows([5])
    row = dataclasses.replace(row, sampled=np.ones(5, dtype=bool), allowed=None)
    with pytest.raises(ValueError, match="no context"):
        branch_logprobs(model, TokenScorer(model, 1.0), [row], 4096)
