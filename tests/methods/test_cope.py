"""T4: CoPE's rows, weights and lags by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.errors import UsageError
from agentcredit.methods.cope import Cope, CopeParams
from agentcredit.methods.cope_probe import spaced
from agentcredit.methods.forecasts import Forecast, Writer, actions_in, chosen, forecasts_of, weighted
from agentcredit.methods.registry import build
from agentcredit.policies.base import Response
from agentcredit.training.packing import materialise
from agentcredit.training.rows import build_rows
from tests.methods.build import Words, group, random_groups, tools, walk

MARK = 9


def asked(*states: str, success: bool = True, layout: Any = "dialogue", valid: list[bool] | None = None) -> Any:
    """A walk whose turn t is asked with ids (10 + t, MARK) and answers with (20 + t)."""
    episode = walk(list(states), success)
    valid = valid or [True] * len(episode.turns)
    return replace(
        episode,
        layout=layout,
        turns=tuple(
            replace(
                turn, prompt_ids=(10 + t, MARK), response_ids=(20 + t,), action=f"to{states[t + 1]}", valid=valid[t]
            )
            for t, turn in enumerate(episode.turns)
        ),
    )


def params(**values: Any) -> CopeParams:
    return CopeParams(**{"lambda": 1.0, "log_every": 0, "probe_every": 0, **values})


def rows(groups: Any, template: Words | None = None, **values: Any) -> Any:
    method = build(MethodConfig(name="cope", params={"lambda": 1.0, "log_every": 0, "probe_every": 0, **values}))
    return method.credit(groups, tools(template=template or Words(MARK), terse=True)).extra_rows


def test_every_action_is_forecast_at_every_lag_and_chunks_end_with_the_episode():
    # T=4, K=2: chunks of 3, 3, 2, 1 actions: rows = T, targets = min(K+1, T−t).
    (four,) = [group(asked("A", "B", "C", "D", "G"))]
    found = forecasts_of([four], params(K=2))
    assert [f.actions for f in found] == [
        ("toB", "toC", "toD"),
        ("toC", "toD", "toG"),
        ("toD", "toG"),
        ("toG",),
    ]
    assert [f.lags for f in found] == [(0, 1, 2), (0, 1, 2), (0, 1), (0,)]
    assert forecasts_of([four], params(K=9)) == forecasts_of([four], params(K=3))  # beyond the end there is nothing


def test_weights_by_hand():
    # Group 0: successes of 1 and 2 turns, one failure; group 1: no success; group 2: one success of 1 turn.
    # Two groups count: each ½. Group 0: ¼ per success: ¼ on the first's row, ⅛ on each of the second's. Group 2: ½.
    groups = [
        group(walk(["A", "G"], True), walk(["A", "B", "G"], True), walk(["A", "B"], False)),
        group(walk(["A", "B"], False)),
        group(walk(["A", "G"], True)),
    ]
    got = weighted(forecasts_of(groups, params()), groups, params())
    assert [(f.group, f.episode, f.turn, f.weight) for f in got] == [
        (0, 0, 0, 0.25),
        (0, 1, 0, 0.125),
        (0, 1, 1, 0.125),
        (2, 0, 0, 0.5),
    ]
    # Without the group's normalisation each weighs 1/(3 groups · G · T).
    loose = weighted(forecasts_of(groups, params()), groups, params(group_norm=False))
    np.testing.assert_allclose([f.weight for f in loose], [1 / 9, 1 / 18, 1 / 18, 1 / 3])
    # The group's success rates are 2/3 and 1.
    hard = weighted(forecasts_of(groups, params()), groups, params(difficulty_weight=True))
    np.testing.assert_allclose([f.weight for f in hard], [1 / 12, 1 / 24, 1 / 24, 0])


@pytest.mark.parametrize("limit", [0, 2])
def test_weights_sum_to_one_however_many_succeed(limit: int):
    groups = random_groups(np.random.default_rng(4), n_groups=6)
    found = chosen(forecasts_of(groups, params()), groups, limit, np.random.default_rng(0))
    got = weighted(found, groups, params())
    assert sum(f.weight for f in got) == pytest.approx(1.0)
    assert all(groups[f.group].episodes[f.episode].success for f in got)
    if limit:
        per_episode = [(f.group, f.episode) for f in got]
        assert max(per_episode.count(e) for e in set(per_episode)) == limit


def test_a_second_equal_success_changes_nothing():
    def of_first(groups: Any) -> float:
        got = weighted(forecasts_of(groups, params()), groups, params())
        return sum(f.weight for f in got if f.group == 0)

    other = group(walk(["A", "G"], True))
    once = [group(walk(["A", "B", "G"], True), walk(["A", "B"], False)), other]
    twice = [group(walk(["A", "B", "G"], True), walk(["A", "B", "G"], True)), other]
    assert of_first(once) == of_first(twice) == pytest.approx(0.5)


def test_the_options_of_a_chunk():
    one = [group(asked("A", "B", "C", "G", valid=[True, False, True]))]

    def chunks(**values: Any) -> list[tuple[str, ...]]:
        return [f.actions for f in forecasts_of(one, params(K=1, **values))]

    assert chunks() == [("toB", "toC"), ("toC", "toG"), ("toG",)]
    assert chunks(truncate="drop") == [("toB", "toC"), ("toC", "toG")]
    assert chunks(current_action=False) == [("toC",), ("toG",)]
    assert chunks(invalid_filter="drop_row") == [("toG",)]
    assert chunks(invalid_filter="cut") == [("toB",), ("toG",)]
    assert chunks(invalid_filter="splice") == [("toB",), ("toG",), ("toG",)]
    assert [f.ended for f in forecasts_of(one, params(K=1, truncate="end"))] == [False, False, True]
    failed = [group(asked("A", "B", success=False))]
    assert forecasts_of(failed, params()) == []
    assert len(forecasts_of(failed, params(success_filter=False))) == 1


def test_a_forecast_as_tokens():
    template = Words(MARK)
    forecast = Forecast(0, 0, 0, ("toB", "toC now"), (0, 1), ended=False, weight=0.5)
    ids, weight, lag = Writer(template, terse=True, params=params(K=1)).write(forecast)
    assert template.read(ids) == "2 9 toB; toC now; <end>"
    assert lag.tolist() == [-1, -1, 0, 1, 1, 1]
    np.testing.assert_allclose(weight, [0, 0, 0.125, 0.125, 0.125, 0.125])  # ½ over the answer's four tokens
    _, decayed, _ = Writer(template, terse=True, params=params(K=1, lag_decay=0.5)).write(forecast)
    np.testing.assert_allclose(decayed[2:], [0.2, 0.1, 0.1, 0.1])  # 1, ½, ½, ½ scaled to ½
    _, summed, _ = Writer(template, terse=True, params=params(K=1, token_agg="sum")).write(forecast)
    np.testing.assert_allclose(summed[2:], [0.5] * 4)
    ids, _, _ = Writer(template, terse=False, params=params(K=1)).write(replace(forecast, ended=True))
    assert template.read(ids).endswith("9 1. toB 2. toC now done <end>")


@pytest.mark.parametrize("layout", ["dialogue", "window"])
def test_a_row_continues_the_context_of_its_action_and_nothing_later(layout: Any):
    groups = [group(asked("A", "B", "G", layout=layout), asked("A", "B", success=False, layout=layout))]
    template = Words(MARK)
    method = build(MethodConfig(name="cope", params={"lambda": 0.5, "log_every": 0, "K": 1}))
    assignment = method.credit(groups, tools(template=template, terse=True))
    whole = [template.read(row.ids) for row in materialise(build_rows(groups, assignment))]
    if layout == "dialogue":
        acting = ["10 9 20 11 9 21", "10 9 20"]
        forecasts = ["10 2 9 toB; toG; <end>", "10 9 20 11 2 9 toG; <end>"]
    else:
        acting = ["10 9 20", "11 9 21", "10 9 20"]
        forecasts = ["10 2 9 toB; toG; <end>", "11 2 9 toG; <end>"]
    assert whole == acting + forecasts
    assert sum(row.ce_weight.sum() for row in assignment.extra_rows) == pytest.approx(0.5)
    assert not any(row.sampled.any() or row.advantage.any() for row in assignment.extra_rows)


def test_lambda_zero_and_no_success_leave_the_base():
    won = [group(asked("A", "G"), asked("A", "B", success=False))]
    lost = [group(asked("A", "B", success=False))]
    assert rows(won, **{"lambda": 0.0}) == []
    assert rows(lost) == []
    base = build(MethodConfig(name="grpo")).credit(won, tools()).credits
    mine = build(MethodConfig(name="cope")).credit(won, tools(template=Words(MARK))).credits
    for ours, theirs in zip(mine[0], base[0], strict=True):
        assert [a.tolist() for a in ours.advantage_TN] == [a.tolist() for a in theirs.advantage_TN]


def test_groups_in_another_order_give_the_same_rows():
    groups = [group(asked("A", "G")), group(asked("A", "B", "G"), asked("A", "G"))]
    template = Words(MARK)
    one, other = (
        [(template.read(r.ids), r.ce_weight.tolist()) for r in rows(g, template)] for g in (groups, groups[::-1])
    )
    assert sorted(one) == sorted(other)


def test_likelihoods_by_lag_are_of_the_answer_after_its_context():
    groups = [group(asked("A", "B", "G"))]
    seen: list[Any] = []

    def score(pairs: Any) -> list[np.ndarray]:
        seen.extend(pairs)
        return [-np.arange(1.0, len(response) + 1) for _, response in pairs]

    template = Words(MARK)
    method = build(MethodConfig(name="cope", params={"K": 1, "log_every": 1}))
    metrics = method.credit(groups, tools(template=template, terse=True, score=score)).metrics
    assert [(template.read(p), template.read(r)) for p, r in seen] == [
        ("10 2 9", "toB; toG; <end>"),
        ("10 9 20 11 2 9", "toG; <end>"),
    ]
    # Lag 0: toB (1), and of the second toG and its end (1, 2); lag 1: toG and its end (2, 3).
    assert metrics["cope/nll_lag0"] == pytest.approx(4 / 3)
    assert metrics["cope/nll_lag1"] == pytest.approx(2.5)
    assert (metrics["cope/rows"], metrics["cope/weight_sum"]) == (2, 1)


def test_greedy_forecasts_are_matched_action_by_action():
    groups = [group(asked("A", "B", "C", "G"))]
    template = Words(MARK)
    said = {
        "10 2 9": "toB; toX; <end>",
        "10 9 20 11 2 9": "toC; <end>",  # too short: the action at lag 1 is missed
        "10 9 20 11 9 21 12 2 9": "toX; toG; <end>",
    }
    asked_with: list[Any] = []

    def generate(prompts: Any, keys: Any, *, temperature: Any = None, max_new_tokens: Any = None) -> Any:
        asked_with.append((temperature, max_new_tokens, len(set(keys))))
        answers = [tuple(template.encode(said[template.read(prompt)])) for prompt in prompts]
        return [Response("", ids, np.zeros(len(ids), dtype=np.float32), finished=True) for ids in answers]

    method = build(MethodConfig(name="cope", params={"K": 1, "log_every": 0, "probe_every": 10}))

    def metrics_at(step: int) -> dict[str, float]:
        given = tools(template=template, terse=True, generate=generate)
        return method.credit(groups, replace(given, step=step)).metrics

    metrics = metrics_at(11)
    assert metrics["cope/top1_acc_lag0"] == pytest.approx(2 / 3)  # toB and toC of three; toG stands where toX does
    assert metrics["cope/top1_acc_lag1"] == 0  # toX for toC, nothing for toG
    assert asked_with == [(0.0, 3 + 8, 3)]  # greedy; the longest target has two actions and its end
    assert not any("top1" in name for name in metrics_at(12))
    assert len(asked_with) == 1


def test_an_answer_is_read_as_it_is_written():
    template = Words(MARK)
    writer = Writer(template, terse=True, params=params(K=2))
    forecast = Forecast(0, 0, 0, ("go to B", "take X"), (0, 1), ended=True)
    ids, _, lag = writer.write(forecast)
    assert writer.read(ids[lag >= 0].tolist()[:-1]) == ("go to b", "take x")  # the closing word is no action
    assert actions_in("1. Go  to desk 1\n2. take pen 1 from desk 1\ndone", terse=False) == (
        "go to desk 1",
        "take pen 1 from desk 1",
    )
    assert actions_in("I would look first.", terse=False) == ()
    assert actions_in("", terse=True) == ()


def test_what_is_probed_is_spread_over_the_batch():
    assert spaced(range(3)) == [0, 1, 2]
    assert spaced(range(128)) == list(range(0, 128, 2))
    assert len(spaced(range(100))) == 64
    assert spaced(range(100))[-1] == 98


def test_what_it_needs_is_said():
    groups = [group(walk(["A", "G"], True))]
    with pytest.raises(UsageError, match="chat template"):
        build(MethodConfig(name="cope")).credit(groups, tools())
    with pytest.raises(UsageError, match="start of an answer"):
        build(MethodConfig(name="cope")).credit(
            groups, tools(template=Words(MARK))
        )  # prompts of one id that is no mark


def test_label_names_every_choice():
    assert Cope(CopeParams()).label() == "cope(lambda=0.01,K=2)"
    assert Cope(params(K=0, invalid_filter="cut")).label() == "cope(lambda=1,K=0,invalid_filter=cut)"
