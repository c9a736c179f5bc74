import numpy as np
import pytest

from agentcredit.errors import ComparisonRefused, UsageError
from agentcredit.report.compare import compare, matrix, rate_of
from agentcredit.stats.intervals import wilson
from agentcredit.stats.paired import mcnemar
from tests.report.build import evaluation, results


def rows(section):
    return {row.label: row for row in section.rows}


def test_one_seed_wilson_and_mcnemar():
    (section,) = compare([evaluation("grpo", "11000000"), evaluation("proas", "11111100")])
    assert section.baseline == "grpo(default)"
    row = rows(section)["proas(default)"]
    assert (row.rate.k, row.rate.n, row.rate.interval) == (6, 8, wilson(6, 8))
    assert row.comparison
    assert (row.comparison.wins, row.comparison.losses, row.comparison.p) == (4, 0, mcnemar(4, 0))
    assert row.comparison.difference == 0.5
    assert row.p_holm == mcnemar(4, 0) == 0.125
    assert rows(section)["grpo(default)"].comparison is None


def test_several_seeds_are_paired_by_seed_and_task():
    evaluations = [
        evaluation("grpo", "11110000", 0),
        evaluation("grpo", "11000000", 1),
        evaluation("proas", "11110000", 1),
        evaluation("proas", "11111100", 0),
    ]
    (section,) = compare(evaluations)
    row = rows(section)["proas(default)"]
    assert row.seeds == (0, 1)
    assert row.per_seed == (0.75, 0.5)
    assert (row.rate.k, row.rate.n) == (10, 16)
    assert row.rate.interval
    assert row.rate.interval.kind == "hierarchical"
    assert row.comparison
    assert (row.comparison.pairs, row.comparison.wins, row.comparison.losses) == (16, 4, 0)
    assert row.comparison.difference == pytest.approx(0.25)


def test_holm_runs_over_the_methods_of_a_section():
    evaluations = [evaluation("grpo", "0" * 12), evaluation("a", "1" * 6 + "0" * 6), evaluation("b", "1" * 12)]
    (section,) = compare(evaluations)
    # Exact: 2/2^6 and 2/2^12; the smaller one doubled, the larger one left.
    assert rows(section)["b(default)"].p_holm == pytest.approx(2 * 2 / 2**12)
    assert rows(section)["a(default)"].p_holm == pytest.approx(2 / 2**6)


def test_harness_failures_are_in_no_rate_and_break_no_pairing():
    (section,) = compare([evaluation("grpo", "1x00"), evaluation("proas", "11x1")])
    grpo, proas = rows(section)["grpo(default)"], rows(section)["proas(default)"]
    assert (grpo.rate.k, grpo.rate.n, grpo.harness_failures) == (1, 3, 1)
    assert (proas.rate.k, proas.rate.n, proas.harness_failures) == (3, 3, 1)
    assert proas.comparison
    assert (proas.comparison.pairs, proas.comparison.wins) == (2, 1)


def test_repeats_are_clustered_by_task():
    # 8 tasks of 4 equal episodes each carry no more than 8 tasks do.
    four = rate_of([results("1111" * 4 + "0000" * 4, repeats=4)])
    one = rate_of([results("1" * 4 + "0" * 4)])
    assert (four.k, four.n) == (16, 32)
    assert four.interval
    assert one.interval
    width = one.interval.high - one.interval.low
    assert four.interval.high - four.interval.low == pytest.approx(width, abs=0.08)
    assert wilson(16, 32).high - wilson(16, 32).low < 0.7 * width


@pytest.mark.parametrize("ends", [["1000", "0000", "0000"], ["0111", "1111", "1111"]])
def test_no_interval_over_few_seeds_reaches_beyond_0_and_1(ends: list[str]):
    # Deviations from the mean of three seeds, scaled up and drawn, would reach past 0 or past 1.
    rate = rate_of([results(outcomes * 30) for outcomes in ends])
    assert rate.interval
    assert 0 <= rate.interval.low < rate.interval.high <= 1
    assert rate.interval.low == 0 or rate.interval.high == 1
    # Nor has a mean score, which lies between 0 and 1 too; one that is neither makes a section show it.
    (section,) = compare(
        [evaluation("grpo", outcomes * 30, seed, scores={0: 0.99}) for seed, outcomes in enumerate(ends)]
    )
    (row,) = section.rows
    assert row.score
    assert 0 <= row.score[1].low < row.score[1].high <= 1


def test_nothing_counted_has_no_rate():
    rate = rate_of([[], []])
    assert (rate.k, rate.n, rate.value, rate.interval) == (0, 0, None, None)
    (section,) = compare([evaluation("grpo", "xx"), evaluation("proas", "11")])
    assert "no difference" in section.notes[0]


def test_matrix_has_a_hole_where_nothing_counts():
    counted = [[o for o in results(ends) if o.counted] for ends in ("10", "1x")]
    values = matrix(counted, ["t00", "t01"], lambda outcome: float(outcome.success))
    np.testing.assert_array_equal(values, [[1.0, 0.0], [1.0, np.nan]])


def test_graded_scores_get_their_own_mean():
    (section,) = compare([evaluation("grpo", "100", scores={1: 0.5})])
    (row,) = section.rows
    assert row.score
    assert row.score[0] == pytest.approx(0.5)
    assert row.score[1].low < 0.5 < row.score[1].high
    (section,) = compare([evaluation("grpo", "100")])
    assert section.rows[0].score is None


def test_warm_start_and_reference_rows_come_first_and_once():
    evaluations = [
        evaluation("grpo", "1111"),
        evaluation("proas", "1110"),
        evaluation("grpo", "1000", step=-1),
        evaluation("proas", "1000", step=-1),
        evaluation("random", "0000", policy="random", label="random", step=-1),
        evaluation("random", "0000", policy="random", label="random", step=-1, run="other"),
        evaluation("expert", "1111", policy="expert", label="expert", step=-1),
    ]
    (section,) = compare(evaluations)
    assert [row.label for row in section.rows] == ["expert", "random", "warm start", "grpo(default)", "proas(default)"]
    assert rows(section)["warm start"].rate.n == 4
    assert [row.comparison is None for row in section.rows] == [True, True, True, True, False]
    assert [row.is_method for row in section.rows] == [False, False, False, True, True]
    assert rows(section)["random"].published == ()


def test_the_same_seed_twice_is_refused():
    with pytest.raises(ComparisonRefused, match=r"seed 0 is there twice, in runs alfworld__grpo__tiny__s0 and again"):
        compare([evaluation("grpo", "10"), evaluation("grpo", "11", run="again")])


def test_environments_splits_and_models_are_apart():
    evaluations = [
        evaluation("grpo", "10"),
        evaluation("grpo", "10", env="scienceworld", panel_sha256="cd" * 32),
        evaluation("grpo", "10", model="smollm2", comparison="c9"),
        evaluation("grpo", "10", split="valid_seen", panel_sha256="ef" * 32),
    ]
    sections = compare(evaluations)
    assert [(s.header.env, s.header.split, s.header.model) for s in sections] == [
        ("alfworld", "valid_seen", "tiny"),
        ("alfworld", "valid_unseen", "smollm2"),
        ("alfworld", "valid_unseen", "tiny"),
        ("scienceworld", "valid_unseen", "tiny"),
    ]


def test_the_baseline_may_be_named_missing_or_ambiguous():
    evaluations = [evaluation("rloo", "10"), evaluation("proas", "11")]
    (section,) = compare(evaluations)
    assert section.baseline == ""
    assert "baseline 'grpo'" in section.notes[0]
    (section,) = compare(evaluations, "rloo")
    assert section.baseline == "rloo(default)"
    with pytest.raises(UsageError, match=r"'rlo' \(--baseline\).*Did you mean 'rloo'"):
        compare(evaluations, "rlo")
    two = [evaluation("grpo", "10", label="grpo(std)"), evaluation("grpo", "10", label="grpo(nostd)", run="other")]
    assert "name one with --baseline" in compare(two)[0].notes[0]
    with pytest.raises(UsageError, match="give the whole label"):
        compare(two, "grpo")
    assert compare(two, "grpo(std)")[0].baseline == "grpo(std)"


def test_only_common_seeds_are_compared_and_that_is_said():
    evaluations = [evaluation("grpo", "1100", 0), evaluation("grpo", "1000", 1), evaluation("proas", "1110", 1)]
    (section,) = compare(evaluations)
    row = rows(section)["proas(default)"]
    assert row.comparison
    assert (row.comparison.wins, row.comparison.pairs) == (2, 4)
    assert section.notes == ("proas(default): difference over the seeds in common, 1.",)
