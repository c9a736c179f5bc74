from __future__ import annotations

import numpy as np
import pytest

from agentcredit.episodes import Episode, Group, StopReason, Task, Turn
from agentcredit.methods.base import Assignment, Credit
from agentcredit.training.rows import build_rows, rows_of

TASK = Task(env="toy", split="train", id="t1", type="toy", goal="", content_hash="0" * 16)


def turn(prompt, response, logprobs, allowed=None, truncated=0):
    return Turn(
        prompt_ids=tuple(prompt),
        response_ids=tuple(response),
        response_logprobs=np.array(logprobs, dtype=np.float32),
        action="",
        valid=True,
        observation="",
        next_observation="",
        allowed=allowed,
        truncated_turns=truncated,
    )


def episode(*turns, layout="dialogue", sibling=0):
    return Episode(
        task=TASK,
        sibling=sibling,
        layout=layout,
        turns=turns,
        score=0.0,
        success=False,
        stop_reason=StopReason.FAILURE,
    )


TWO_TURNS = (turn([1, 2, 3], [4, 5], [-0.5, -0.25]), turn([6], [7], [-1.5], allowed=((7, 9),)))
CREDIT = Credit(advantage_TN=(np.array([1.0, 2.0]), np.array([-3.0])))


def test_dialogue_is_one_row_of_prompts_and_responses_in_turn():
    (row,) = rows_of(episode(*TWO_TURNS), CREDIT)
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert row.ids.dtype == np.int64
    assert row.sampled.tolist() == [False, False, False, True, True, False, True]
    assert row.rollout_logprobs.tolist() == [0, 0, 0, -0.5, -0.25, 0, -1.5]
    assert row.advantage.tolist() == [0, 0, 0, 1, 2, 0, -3]
    assert row.ce_weight.tolist() == [0] * 7
    assert row.allowed == (None, None, None, None, None, None, (7, 9))
    assert {row.rollout_logprobs.dtype, row.advantage.dtype, row.ce_weight.dtype} == {np.dtype(np.float32)}


def test_window_is_one_row_per_turn():
    first, second = rows_of(episode(*TWO_TURNS, layout="window"), CREDIT)
    assert first.ids.tolist() == [1, 2, 3, 4, 5]
    assert first.allowed is None
    assert second.ids.tolist() == [6, 7]
    assert second.advantage.tolist() == [0, -3]
    assert second.allowed == (None, (7, 9))


def test_cross_entropy_weights_reach_their_tokens():
    credit = Credit(
        advantage_TN=CREDIT.advantage_TN,
        ce_response_TN=(np.array([0.1, 0.2]), np.array([0.3])),
        ce_prompt_TN=(np.array([0.0, 0.4, 0.5]), np.array([0.6])),
    )
    (row,) = rows_of(episode(*TWO_TURNS), credit)
    np.testing.assert_allclose(row.ce_weight, [0, 0.4, 0.5, 0.1, 0.2, 0.6, 0.3], rtol=1e-6)


def test_a_rebuilt_context_starts_a_new_row():
    turns = (
        turn([1, 2], [3], [-1.0]),
        turn([4], [5], [-1.0]),
        turn([1, 4], [6], [-1.0], truncated=1),  # the oldest turn was cut: this prompt is the whole context
        turn([7], [8], [-1.0]),  # and this one is appended to it
        turn([1, 7], [9], [-1.0], truncated=3),
    )
    rows = rows_of(episode(*turns), Credit(advantage_TN=tuple(np.array([float(t)]) for t in range(5))))
    assert [row.ids.tolist() for row in rows] == [[1, 2, 3, 4, 5], [1, 4, 6, 7, 8], [1, 7, 9]]
    assert [row.advantage.tolist() for row in rows] == [[0, 0, 0, 0, 1], [0, 0, 2, 0, 3], [0, 0, 4]]


def test_batch_order_is_groups_episodes_then_extra_rows():
    one, two = episode(TWO_TURNS[0]), episode(TWO_TURNS[1], sibling=1)
    credits_ = [Credit(advantage_TN=(np.array([1.0, 2.0]),)), Credit(advantage_TN=(np.array([-3.0]),))]
    (extra,) = rows_of(episode(turn([90], [91], [-1.0])), Credit(advantage_TN=(np.array([0.0]),)))
    rows = build_rows([Group(TASK, (one, two))], Assignment(credits=[credits_], extra_rows=[extra]))
    assert [row.ids[0] for row in rows] == [1, 6, 90]


def test_an_episode_without_turns_gives_no_row():
    assert rows_of(episode(), Credit(advantage_TN=())) == []
    assert rows_of(episode(layout="window"), Credit(advantage_TN=())) == []


def test_a_credit_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"advantage of episode 0 of task 't1' has arrays of \[1, 1\]"):
        rows_of(episode(*TWO_TURNS), Credit(advantage_TN=(np.array([1.0]), np.array([1.0]))))


def test_a_credit_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="is not finite"):
        rows_of(episode(*TWO_TURNS), Credit(advantage_TN=(np.array([1.0, np.nan]), np.array([1.0]))))
