"""ECHO: which tokens are predicted, and with what weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.errors import UsageError
from agentcredit.methods.registry import build
from agentcredit.training.packing import materialise
from agentcredit.training.rows import build_rows
from tests.methods.build import Words, group, tools, walk


def heard(template: Words, *states: str, layout: Any = "dialogue", valid: list[bool] | None = None) -> Any:
    """A walk in which each observation is ``at <state>``, within a message that ends with the mark."""
    episode = walk(list(states), True)
    turns = []
    for t, turn in enumerate(episode.turns):
        said, after = f"at {states[t]}", f"at {states[t + 1]}"
        turns.append(
            replace(
                turn,
                observation=said,
                next_observation=after,
                prompt_ids=(*template.encode(f"user {said}"), 1),
                valid=valid[t] if valid else True,
            )
        )
    return replace(episode, layout=layout, turns=tuple(turns))


def credit(groups: Any, template: Any, **params: Any) -> Any:
    return build(MethodConfig(name="echo", params=params)).credit(groups, tools(template=template))


def test_dialogue_predicts_what_its_actions_led_to():
    template = Words()
    groups = [group(heard(template, "A", "B", "C"), heard(template, "A", "D"))]
    (two, one) = credit(groups, template, **{"lambda": 0.5}).credits[0]
    # One observation within the dialogues: "at B", two tokens. What was seen first was no answer, what came last is not in the row.
    assert [w.tolist() for w in two.ce_prompt_TN] == [[0, 0, 0, 0], [0, 0.25, 0.25, 0]]
    assert [w.tolist() for w in one.ce_prompt_TN] == [[0, 0, 0, 0]]


def test_window_predicts_each_answer_in_a_row_after_the_response():
    template = Words()
    groups = [group(heard(template, "A", "B", "C", layout="window"))]
    assignment = credit(groups, template, **{"lambda": 0.5})
    rows = materialise(build_rows(groups, assignment))
    assert [template.read(row.ids) for row in rows[2:]] == ["user at A 1 <end> at B", "user at B 1 <end> at C"]
    assert [row.ce_weight.tolist() for row in rows[2:]] == [[0, 0, 0, 0, 0, 0.125, 0.125]] * 2


def test_warnings_are_left_out_unless_asked_for():
    template = Words()
    groups = [group(heard(template, "A", "A", "B", "C", valid=[False, True, True]))]
    weights = [
        credit(groups, template, **{"lambda": 1.0, "skip_invalid": skip}).credits[0][0] for skip in (True, False)
    ]
    assert [[w.sum() for w in c.ce_prompt_TN] for c in weights] == [[0, 0, 1], [0, 0.5, 0.5]]


def test_long_observations_are_cut():
    template = Words()
    groups = [group(heard(template, "A", "B", "C"))]
    (one,) = credit(groups, template, **{"lambda": 1.0, "max_tokens": 1}).credits[0]
    assert one.ce_prompt_TN[1].tolist() == [0, 1, 0, 0]


def test_lambda_zero_is_the_base():
    groups = [group(heard(Words(), "A", "B", "C"))]
    (plain,) = build(MethodConfig(name="echo", params={"lambda": 0.0})).credit(groups, tools()).credits[0]
    assert plain.ce_prompt_TN is None


def test_what_it_needs_is_said():
    with pytest.raises(UsageError, match="chat template"):
        credit([group(walk(["A", "B", "C"], True))], None)


def test_weights_join_those_of_another_method():
    template = Words()
    groups = [group(heard(template, "A", "B", "C"))]
    both = build(MethodConfig(name="echo+cope", params={"lambda": 0.5, "log_every": 0})).credit(
        groups, tools(template=template, terse=True)
    )
    rows = materialise(build_rows(groups, both))
    np.testing.assert_allclose(sum(row.ce_weight.sum() for row in rows), 1.0)
