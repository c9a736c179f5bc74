"""Contexts that several rows continue are computed once, and nothing else changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from agentcredit.config import LossConfig, OptimConfig, TrainConfig
from agentcredit.training.learner import Learner
from agentcredit.training.packing import collate, families, forks_of, lines_of, materialise
from agentcredit.training.rows import Row

BATCHES = pytest.mark.parametrize("budget", [64, 4096])


def forecast(make_rows: Any, length: int, seed: int, prefix: tuple[int, int]) -> Row:
    """A row of cross-entropy alone that continues another."""
    (row,) = make_rows([length], seed=seed, restricted=0.0, ce=1.0)
    nothing = np.zeros(length, dtype=np.float32)
    return dataclasses.replace(
        row, sampled=nothing.astype(bool), rollout_logprobs=nothing, advantage=nothing, allowed=None, prefix=prefix
    )


def prediction(make_rows: Any, length: int, seed: int, prefix: tuple[int, int]) -> Row:
    """A sampled row, a part of the policy loss of its own, that continues another."""
    (row,) = make_rows([length], seed=seed, restricted=0.0, ce=0.0)
    return dataclasses.replace(row, prefix=prefix, part="own", weight=0.5)


@pytest.fixture
def rows(make_rows: Any) -> list[Row]:
    """Three episodes with forecasts at several places: one without advantage, one fork of a fork, one without any."""
    episodes = make_rows([30, 41, 12])
    silent = dataclasses.replace(
        episodes[1], advantage=np.zeros(41, dtype=np.float32), ce_weight=np.zeros(41, dtype=np.float32)
    )
    return [
        episodes[0],
        silent,
        episodes[2],
        forecast(make_rows, 6, 1, (0, 1)),
        forecast(make_rows, 9, 2, (0, 30)),
        forecast(make_rows, 4, 3, (1, 17)),
        forecast(make_rows, 5, 4, (3, 4)),
        prediction(make_rows, 7, 5, (0, 21)),
        prediction(make_rows, 5, 6, (1, 9)),
    ]


def tokens(ids: list[int], prefix: tuple[int, int] | None = None) -> Row:
    """A row of which the last token is to be predicted."""
    n = len(ids)
    zeros = np.zeros(n, dtype=np.float32)
    weight = np.array([0.0] * (n - 1) + [1.0], dtype=np.float32)
    return Row(np.array(ids), zeros.astype(bool), zeros, zeros, weight, prefix=prefix)


def learner_of(model: Any, shared: bool, budget: int, **loss: Any) -> Learner:
    train = TrainConfig(share_prefixes=shared, minibatches=2).model_copy(update={"tokens_per_microbatch": budget})
    return Learner(model, LossConfig(**loss), OptimConfig(lr=1e-3), train)


@BATCHES
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one_update_is_the_same(make_model: Any, rows: list[Row], budget: int, attention: str):
    models = [make_model(attn_implementation=attention) for _ in range(2)]
    shared, written = (
        learner_of(model, share, budget, kl=0.05).update(rows, 0)
        for model, share in zip(models, (True, False), strict=True)
    )
    for name in ("loss", "loss_policy", "loss_ce", "loss_kl", "grad_norm", "rows_skipped"):
        assert shared[name] == pytest.approx(written[name], rel=1e-5, abs=1e-7), name
    assert shared["loss_ce"] > 0
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


@BATCHES
def test_log_probabilities_are_the_same(make_model: Any, rows: list[Row], budget: int):
    said = [dataclasses.replace(row, sampled=np.arange(len(row)) > 0) for row in rows]
    scores = [learner_of(make_model(), share, budget).logprobs(said) for share in (True, False)]
    for ours, theirs in zip(*scores, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-6)
        assert np.any(ours)


def test_a_context_goes_through_the_model_once(make_model: Any, rows: list[Row]):
    def tokens(share: bool) -> int:
        learner = learner_of(make_model(), share, 1)
        seen: list[int] = []
        learner.model.get_decoder().register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
        )
        learner.update(rows, 0)
        return sum(seen)

    # Written out: 30 + 12 and the forecasts with their contexts (the silent episode has no row of its own to run).
    assert tokens(False) == 30 + 12 + (1 + 6) + (30 + 9) + (17 + 4) + (4 + 5) + (21 + 7) + (9 + 5)
    # Shared: each episode once, the forecasts' own tokens but the last, which predicts nothing; the fork of a fork has its
    # context written out, because a line has one root.
    assert tokens(True) == 30 + 12 + 41 + 5 + 8 + 3 + (4 + 5) + 6 + 4


def test_no_row_is_continued_no_mask_is_made(make_rows: Any):
    rows = make_rows([5, 9])
    batch = collate(rows, [np.zeros(5), np.zeros(9)], [0, 1], forks_of(rows))
    assert batch.visible_BFN is None
    assert batch.place_BN is None


def test_who_sees_whom_by_hand():
    rows = [tokens([1, 2, 3]), tokens([4, 5, 8], (0, 2)), tokens([6, 9], (0, 3)), tokens([7], (0, 0))]
    forks, whole = forks_of(rows), materialise(rows)
    assert forks == [None, (0, 2), (0, 3), None]  # nothing in common: a line of its own
    assert lines_of(families(rows), [len(r) for r in whole], forks) == [[([0, 1, 2], 3, 3), ([3], 1, 0)]]
    batch = collate(whole[:3], [np.zeros(len(r)) for r in whole], [0, 1, 2], forks)
    assert batch.ids_BN.tolist() == [[1, 2, 3, 4, 5, 6]]  # 8 and 9 are predicted and predict nothing
    assert batch.place_BN is not None
    assert batch.visible_BFN is not None
    assert batch.place_BN.tolist() == [[0, 1, 2, 2, 3, 3]]
    # The root's three tokens are causal; of the others, what they see:
    seen = [[int(c) for c in np.flatnonzero(line)] for line in batch.visible_BFN[0]]
    assert seen == [[0, 1, 3], [0, 1, 3, 4], [0, 1, 2, 5]]
    # Token 3 of the root after 2, 8 after 5, and 9 after 6.
    assert list(zip(batch.target_K.tolist(), batch.source_K.tolist(), strict=True)) == [(3, 1), (8, 4), (9, 5)]


def test_a_single_token_that_continues_a_row_needs_no_column():
    rows = [tokens([1, 2, 3]), tokens([4], (0, 2)), tokens([5], (0, 3))]
    whole = materialise(rows)
    assert lines_of(families(rows), [len(r) for r in whole], forks_of(rows)) == [[([0, 1, 2], 3, 0)]]
    batch = collate(whole, [np.zeros(len(r)) for r in whole], range(3), forks_of(rows))
    assert batch.ids_BN.tolist() == [[1, 2, 3]]
    assert batch.visible_BFN is None
    # 3 and 4 both after 2, 5 after 3.
    assert list(zip(batch.target_K.tolist(), batch.source_K.tolist(), strict=True)) == [(3, 1), (4, 1), (5, 2)]


def test_roots_of_several_lines_are_padded_to_one_width_by_hand():
    rows = [
        tokens([1, 2, 3]),
        tokens([4, 5]),
        tokens([6, 9], (0, 3)),
        tokens([7, 8, 9], (1, 1)),
        tokens([9, 6], (1, 2)),
    ]
    whole = materialise(rows)
    batch = collate(whole, [np.zeros(len(r)) for r in whole], range(5), forks_of(rows))
    # Roots in columns 0 to 2, forks behind them without their last tokens; 0 is padding.
    assert batch.ids_BN.tolist() == [[1, 2, 3, 6, 0, 0], [4, 5, 0, 7, 8, 9]]
    assert batch.place_BN is not None
    assert batch.visible_BFN is not None
    assert batch.place_BN[0, :4].tolist() == [0, 1, 2, 3]
    assert batch.place_BN[1, [0, 1, 3, 4, 5]].tolist() == [0, 1, 1, 2, 2]
    assert np.flatnonzero(batch.visible_BFN[0, 0]).tolist() == [0, 1, 2, 3]
    seen = [np.flatnonzero(line).tolist() for line in batch.visible_BFN[1]]
    assert seen == [[0, 3], [0, 3, 4], [0, 1, 5]]
    assert batch.visible_BFN.any(axis=2).all()  # padding too
    # By line: 3 after 2; 5 after 4; 9 after 6; 9 after 8, 6 after 9.
    found = zip(batch.target_K.tolist(), batch.line_K.tolist(), batch.source_K.tolist(), strict=True)
    assert list(found) == [(3, 0, 1), (5, 1, 0), (9, 0, 3), (9, 1, 4), (6, 1, 5)]
