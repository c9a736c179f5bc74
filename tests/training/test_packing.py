from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcredit.training.packing import Line, collate, families, materialise, plan
from agentcredit.training.rows import Row


def row(ids, sampled, prefix=None, allowed=None, ce=None):
    n = len(ids)
    return Row(
        ids=np.array(ids, dtype=np.int64),
        sampled=np.array(sampled, dtype=bool),
        rollout_logprobs=np.where(sampled, -np.arange(n, dtype=np.float32), 0).astype(np.float32),
        advantage=np.where(sampled, 2.0, 0.0).astype(np.float32),
        ce_weight=np.array(ce if ce is not None else np.zeros(n), dtype=np.float32),
        allowed=allowed,
        prefix=prefix,
    )


def lines(*lengths: int) -> list[Line]:
    """Lines of one row each."""
    return [Line([index], length, 0) for index, length in enumerate(lengths)]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1), st.integers(1, 20)), max_size=25),
    st.integers(64, 200),
    st.randoms(),
)
def test_a_plan_takes_every_line_once_within_the_budget(sizes, budget, random):
    planned = [Line([index], root, share * forks) for index, (root, share, forks) in enumerate(sizes)]

    def padded(batch):
        return len(batch) * (max(planned[i].root for i in batch) + max(planned[i].forks for i in batch))

    indices = list(range(len(planned)))
    cuts = sorted(random.sample(range(len(planned) + 1), k=min(3, len(planned))))
    bounds = [0, *cuts, len(planned)]
    units = [indices[a:b] for a, b in pairwise(bounds) if a < b]
    batches = plan(planned, units, budget)
    assert sorted(index for batch in batches for index in batch) == indices
    assert all(padded(batch) <= budget for batch in batches)
    for unit in units:
        if padded(unit) <= budget:
            assert sum(bool(set(unit) & set(batch)) for batch in batches) == 1


def test_like_lengths_go_together_longest_first():
    assert plan(lines(10, 40, 12, 38), [[0], [1], [2], [3]], budget=80) == [[1, 3], [2, 0]]


def test_a_row_beyond_the_budget_goes_alone():
    assert plan(lines(300, 10, 10), [[0], [1], [2]], budget=64) == [[0], [1, 2]]


def test_a_family_beyond_the_budget_is_cut():
    assert plan(lines(30, 30, 30), [[0, 1, 2]], budget=64) == [[0, 1], [2]]


def test_lines_that_share_nothing_go_without_those_that_need_a_mask():
    shared = [Line([0], 30, 0), Line([1, 2], 20, 12), Line([3], 28, 0), Line([4, 5], 24, 4)]
    assert plan(shared, [[0], [1], [2], [3]], budget=80) == [[0, 2], [1, 3]]
    # Side by side they would take 24 + 12 columns each.
    assert plan(shared, [[0], [1], [2], [3]], budget=71) == [[0, 2], [1], [3]]


def test_a_prefix_is_written_out_as_silent_context():
    rows = [row([1, 2, 3, 4], [0, 0, 1, 1]), row([8, 9], [1, 0], prefix=(0, 3), allowed=((7, 8), None), ce=[0.5, 0.5])]
    whole = materialise(rows)
    assert whole[0] is rows[0]
    assert whole[1].prefix is None
    assert whole[1].ids.tolist() == [1, 2, 3, 8, 9]
    assert whole[1].sampled.tolist() == [False, False, False, True, False]
    assert whole[1].advantage.tolist() == [0, 0, 0, 2, 0]
    assert whole[1].ce_weight.tolist() == [0, 0, 0, 0.5, 0.5]
    assert whole[1].allowed == (None, None, None, (7, 8), None)


def test_prefixes_chain():
    rows = [row([1, 2], [0, 1]), row([3], [1], prefix=(0, 2)), row([4], [1], prefix=(1, 3)), row([5], [1])]
    assert materialise(rows)[2].ids.tolist() == [1, 2, 3, 4]
    assert families(rows) == [[0, 1, 2], [3]]


@pytest.mark.parametrize("prefix", [(1, 1), (2, 1), (0, 3), (-1, 1)])
def test_a_prefix_that_does_not_exist_is_refused(prefix):
    rows = [row([1, 2], [0, 1]), row([3], [1], prefix=prefix), row([4, 5], [0, 1])]
    with pytest.raises(ValueError, match="which do not exist"):
        materialise(rows)


def test_collate_takes_sampled_and_weighted_tokens():
    rows = [
        row([5, 6, 7], [0, 1, 0], ce=[0, 0, 0.25]),
        row([1, 2, 3, 4, 9], [0, 0, 1, 1, 1], allowed=(None, None, (1, 3, 8), None, (9,))),
    ]
    batch = collate(rows, [np.array([0, 0.5, 0]), np.array([0, 0, 0.1, 0.2, 0.3])], [1, 0])
    assert batch.ids_BN.tolist() == [[1, 2, 3, 4, 9], [5, 6, 7, 0, 0]]
    assert batch.index_R.tolist() == [1, 0]
    # free tokens in the order of the rows, then the restricted ones with fewest choices first
    assert list(zip(batch.row_K.tolist(), batch.position_K.tolist(), strict=True)) == [
        (0, 3),
        (1, 1),
        (1, 2),
        (0, 4),
        (0, 2),
    ]
    assert batch.n_free == 3
    assert batch.target_K.tolist() == [4, 6, 7, 9, 3]
    assert [allowed.tolist() for allowed in batch.allowed_K] == [[9], [1, 3, 8]]
    assert batch.choice_K.tolist() == [0, 1]
    assert batch.sampled_K.tolist() == [True, True, False, True, True]
    assert batch.rollout_logprob_K.tolist() == [-3, -1, 0, -4, -2]
    assert batch.advantage_K.tolist() == [2, 2, 0, 2, 2]
    assert batch.ce_weight_K.tolist() == [0, 0, 0.25, 0, 0]
    np.testing.assert_allclose(batch.loss_weight_K, [0.2, 0.5, 0, 0.3, 0.1], rtol=1e-6)


def test_a_first_token_cannot_be_predicted():
    with pytest.raises(ValueError, match="token 0 of row 0 has no context"):
        collate([row([1, 2], [1, 0])], [np.zeros(2)], [0])


def test_a_token_outside_its_allowed_ids_is_refused():
    bad = dataclasses.replace(row([1, 2], [0, 1]), allowed=(None, (3, 4)))
    with pytest.raises(ValueError, match="token 2 is not among the 2 ids"):
        collate([bad], [np.zeros(2)], [0])
