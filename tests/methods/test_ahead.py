"""T5: AHEAD's band and signs, what the teacher is told, and who names error steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.episodes import StopReason
from agentcredit.errors import UsageError
from agentcredit.methods.ahead import Ahead, AheadParams, centred, weighed
from agentcredit.methods.error_steps import by_graph, by_peer, by_rules, error_steps, quotes
from agentcredit.methods.registry import build
from tests.methods.build import Words, episode, group, random_groups, task, tools, turn, walk


def test_both_signs_and_the_band_by_hand():
    delta = np.array([0.2, -0.2, 9.0, -9.0, 0.0])
    # λ=½, ε=½: multipliers 1 ± 0.1, and ±0.25 at most.
    np.testing.assert_allclose(weighed(np.full(5, 2.0), delta, 0.5, 0.5, "aligned"), [2.2, 1.8, 2.5, 1.5, 2.0])
    np.testing.assert_allclose(weighed(np.full(5, -2.0), delta, 0.5, 0.5, "aligned"), [-1.8, -2.2, -1.5, -2.5, -2.0])
    # Literal differs where A < 0 only: there it blames what the teacher prefers.
    np.testing.assert_allclose(weighed(np.full(5, 2.0), delta, 0.5, 0.5, "literal"), [2.2, 1.8, 2.5, 1.5, 2.0])
    np.testing.assert_allclose(weighed(np.full(5, -2.0), delta, 0.5, 0.5, "literal"), [-2.2, -1.8, -2.5, -1.5, -2.0])


def test_centring():
    delta, scope = [np.array([1.0, 3.0]), np.array([5.0])], [np.array([True, True]), np.array([True])]
    assert [d.tolist() for d in centred(delta, scope, "none")] == [[1, 3], [5]]
    assert [d.tolist() for d in centred(delta, scope, "turn")] == [[-1, 1], [0]]
    assert [d.tolist() for d in centred(delta, scope, "trajectory")] == [[-2, 0], [2]]
    action = [np.array([False, True]), np.array([True])]
    assert [d.tolist() for d in centred(delta, action, "trajectory")] == [[-3, -1], [1]]


def test_what_is_wrong_by_rule():
    one = walk(["A", "A", "B", "A", "B", "C"], False)
    turns = list(one.turns)
    turns[4] = replace(turns[4], valid=False)
    hints = by_rules(group(one), replace(one, turns=tuple(turns)))
    assert set(hints) == {0, 2, 3, 4}
    assert "changes nothing" in hints[0]
    assert "leads back" in hints[2]  # B→A
    assert "before" in hints[3]  # A→B a second time
    assert "not possible" in hints[4]


def test_where_a_sibling_went_another_way():
    won = walk(["A", "B", "C", "G"], True)
    lost = walk(["A", "B", "D"], False)
    siblings = group(walk(["A", "G"], True), won, lost)
    # The longer success is followed from A to B; at B it went to C.
    assert by_peer(siblings, siblings.episodes[2]) == {1: "Another attempt that succeeded did this here: B>C"}
    assert by_peer(group(lost, lost), lost) == {}
    elsewhere = walk(["X", "Y"], False)
    assert by_peer(group(won, elsewhere), elsewhere) == {}


def test_steps_away_from_the_goal_in_the_siblings_graph():
    siblings = group(walk(["A", "B", "G"], True), walk(["A", "B", "A", "C"], False))
    # Distances: A 2, B 1, C unknown and so 3. The failure: 2, 1, 2, 3: its second and third step lead away.
    hints = by_graph(siblings, siblings.episodes[1])
    assert set(hints) == {1, 2}
    assert hints[1].endswith("lead nearer: B>G")
    assert hints[2].endswith("lead nearer: A>B")
    assert by_graph(group(walk(["A", "B"], False)), walk(["A", "B"], False)) == {}


def test_detectors_together():
    siblings = group(walk(["A", "B", "G"], True), walk(["A", "B", "A", "A", "A"], False))
    lost = siblings.episodes[1]
    assert list(error_steps(siblings, lost, ("rules", "peer"), 9)) == [1, 2, 3]
    assert "leads back" in error_steps(siblings, lost, ("rules", "peer"), 9)[1]
    assert "B>G" in error_steps(siblings, lost, ("peer", "rules"), 9)[1]
    assert list(error_steps(siblings, lost, ("rules",), 2)) == [1, 2]
    assert error_steps(siblings, lost, (), 9) == {}


def test_what_the_teacher_is_told():
    first = replace(turn("A", "B", after="You open the fridge 1."), valid=True)
    last = replace(turn("B", "B", after="Nothing happens."), valid=False)
    lost = episode([first, last], False)
    ahead = Ahead(AheadParams())
    assert ahead.note(lost, 0, None) == (
        "After your answer the environment will say: You open the fridge 1.\nIt takes the action."
    )
    assert ahead.note(lost, 1, "stop") == (
        "After your answer the environment will say: Nothing happens.\nIt does not recognise the action.\n"
        "The task then ends in failure.\nHint: stop"
    )
    assert Ahead(AheadParams(max_words=2)).note(lost, 0, None) == (
        "After your answer the environment will say: You open …\nIt takes the action."
    )
    assert Ahead(AheadParams(feedback=False)).note(lost, 0, None) is None
    assert Ahead(AheadParams(feedback=False)).note(lost, 0, "stop") == "Hint: stop"
    assert "Hint" not in str(Ahead(AheadParams(hints=False)).note(lost, 1, "stop"))


def credit(groups: Any, delta: float = 0.0, **params: Any) -> Any:
    """AHEAD with a teacher that finds every token ``delta`` likelier than the policy did; also how many rows it scored."""
    scored: list[int] = []

    def logprobs(rows: Any) -> list[np.ndarray]:
        scored.append(sum(bool(row.sampled.any()) for row in rows))
        return [np.where(row.sampled, delta, 0.0).astype(np.float32) for row in rows]

    method = build(MethodConfig(name="ahead", params=params, invalid_mode="off"))
    return method.credit(groups, tools(template=Words(), logprobs=logprobs)), sum(scored)


def tokens(assignment: Any) -> list[list[list[list[float]]]]:
    return [[[a.tolist() for a in c.advantage_TN] for c in credits] for credits in assignment.credits]


def test_reductions_to_the_base():
    groups = random_groups(np.random.default_rng(0), n_groups=4)
    base = tokens(build(MethodConfig(name="grpo", invalid_mode="off")).credit(groups, tools()))
    assert tokens(credit(groups, delta=3.0, **{"lambda": 0.0})[0]) == base
    assert tokens(credit(groups, delta=0.0)[0]) == base  # the teacher agrees: log-probabilities of these episodes are 0


@pytest.mark.parametrize("scope", ["failed", "all"])
def test_who_is_re_weighed(scope: str):
    mixed = group(walk(["A", "G"], True), walk(["A", "B", "C"], False))
    all_lost = group(walk(["A", "B"], False), walk(["A", "C"], False))
    base = tokens(build(MethodConfig(name="grpo")).credit([mixed, all_lost], tools()))
    got, scored = credit([mixed, all_lost], delta=9.0, scope=scope)
    won, lost = tokens(got)[0]
    factor = 1.25 if scope == "all" else 1.0
    np.testing.assert_allclose(won[0], np.array(base[0][0][0]) * factor)
    np.testing.assert_allclose(lost[0], np.array(base[0][1][0]) * 0.75)  # preferred by the teacher: blamed less
    assert tokens(got)[1] == base[1]
    assert scored == (3 if scope == "all" else 2)  # nobody is asked where there is no advantage


def test_a_hint_changes_the_rows_of_its_step_alone():
    siblings = group(walk(["A", "B", "G"], True), walk(["A", "B", "B", "C"], False))
    said: dict[bool, list[list[int]]] = {}
    for hints in (True, False):
        rows: list[Any] = []

        def logprobs(given: Any, rows: list[Any] = rows) -> list[np.ndarray]:
            rows += [row for row in given if row.sampled.any()]
            return [np.zeros(len(row), dtype=np.float32) for row in given]

        words = Words()
        build(MethodConfig(name="ahead", params={"hints": hints, "detectors": ["rules"]})).credit(
            [siblings], tools(template=words, logprobs=logprobs)
        )
        said[hints] = ["Hint:" in words.read(row.ids) for row in rows]  # type: ignore[misc]
    assert said == {True: [False, True, False], False: [False, False, False]}


def test_metrics():
    groups = [group(walk(["A", "B", "G"], True), walk(["A", "B", "B", "C"], False))]
    metrics = credit(groups, delta=0.2, scope="all", detectors=["rules"])[0].metrics
    assert metrics["ahead/error_steps_per_failed"] == 1
    assert metrics["ahead/saturation"] == 0
    assert metrics["ahead/delta_mean_error"] == pytest.approx(0.2)
    assert metrics["ahead/mult_p95"] == pytest.approx(1.1)
    assert metrics["ahead/mult_p05"] == pytest.approx(0.9)


def test_a_band_that_turns_signs_is_refused():
    with pytest.raises(UsageError, match=r"below 1"):
        build(MethodConfig(name="ahead", params={"lambda": 2.0, "epsilon": 0.5}))


def test_label_names_every_choice():
    assert Ahead(AheadParams()).label() == "ahead(lambda=0.5,eps=0.5,failed,rules+peer)"
    label = Ahead(AheadParams(scope="all", detectors=(), sign_mode="literal", hints=False)).label()
    assert label == "ahead(lambda=0.5,eps=0.5,all,no-detector,sign_mode=literal,hints=false)"


def test_what_the_environment_punishes_is_wrong_by_rule():
    lost = walk(["A", "B", "C", "D"], False)
    turns = list(lost.turns)
    turns[1] = replace(turns[1], reward=-0.2)
    hints = by_rules(group(lost), replace(lost, turns=tuple(turns), stop_reason=StopReason.FAILURE))
    assert set(hints) == {1, 2}
    assert "lowers the score" in hints[1]
    assert "ends the task in failure" in hints[2]


def test_a_hint_with_the_gold_answer_is_dropped():
    secrets = ("Marie Curie", "", "42")
    assert quotes("Another attempt did this: answer[marie  curie]", secrets)
    assert quotes("It is 42.", secrets)
    assert not quotes("It is 421, says Marie.", secrets)
    assert not quotes("anything", ())
    of = replace(task(), secrets=("B>G",))
    siblings = group(walk(["A", "B", "G"], True, of=of), walk(["A", "B", "A"], False, of=of))
    lost = siblings.episodes[1]
    assert by_peer(siblings, lost)[1].endswith("B>G")
    assert error_steps(siblings, lost, ("peer",), 9) == {}
    assert "leads back" in error_steps(siblings, lost, ("peer", "rules"), 9)[1]  # the next detector's stands in
    assert error_steps(siblings, lost, ("llm",), 9, {0: "say b g!", 1: "look"}) == {1: "look"}


def test_a_language_model_names_steps_of_failures_that_count():
    mixed = group(walk(["A", "G"], True), walk(["A", "B", "C"], False))
    all_lost = group(walk(["A", "B"], False), walk(["A", "C"], False))
    asked: list[str] = []

    def read(prompts: Any) -> list[str]:
        asked.extend(prompts)
        return ['[{"step": 2, "wrong": "Too far.", "instead": "go to G"}]' for _ in prompts]

    method = build(MethodConfig(name="ahead", params={"detectors": ["llm"]}, analyser="start", invalid_mode="off"))
    rows: list[Any] = []

    def logprobs(given: Any) -> list[np.ndarray]:
        rows.extend(row for row in given if row.sampled.any())
        return [np.where(row.sampled, 0.1, 0.0).astype(np.float32) for row in given]

    words = Words()
    got = method.credit([mixed, all_lost], tools(template=words, logprobs=logprobs, analyse=read))
    assert len(asked) == 1  # the success, and failures without an advantage, are not read
    said = [words.read(row.ids) for row in rows]
    assert ["Hint: Too far. Instead: go to G" in text for text in said] == [False, True]
    assert got.metrics["ahead/analyser_calls"] == 1
    assert got.metrics["ahead/hint_coverage"] == 1
    assert got.metrics["ahead/agreement"] == -1  # the teacher likes every token of a failure
    with pytest.raises(UsageError, match=r"set method\.analyser"):
        method.credit([mixed], tools(template=words, logprobs=logprobs))
