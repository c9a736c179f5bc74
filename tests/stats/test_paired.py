import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests

from agentcredit.stats.paired import compare_one_seed, compare_seeds, holm, mcnemar, paired_proportions


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_equals_the_exact_binomial(wins, losses):
    expected = scipy.stats.binomtest(wins, wins + losses, 0.5).pvalue if wins + losses else 1.0
    assert mcnemar(wins, losses) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_equals_statsmodels():
    table = [[50, 4], [13, 30]]
    assert mcnemar(13, 4) == pytest.approx(statsmodels_mcnemar(table, exact=True).pvalue, rel=1e-12)


def test_mcnemar_by_hand():
    # One win, no loss: 1 of 2 signs is as extreme, two-sided 2 * 1/2. Five wins: 2 / 2^5.
    assert mcnemar(1, 0) == 1.0
    assert mcnemar(5, 0) == 2 / 32
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(3000, 2000) < 1e-40
    with pytest.raises(ValueError, match="negative"):
        mcnemar(-1, 2)


def test_bonett_price_by_hand():
    # wins 8, losses 2 of 48: p12 = 9/50, p21 = 3/50, centre 0.12, variance (0.24 - 0.0144)/50.
    half = 1.959963985 * np.sqrt((0.24 - 0.12**2) / 50)
    interval = paired_proportions(8, 2, 48)
    assert (interval.low, interval.high) == pytest.approx((0.12 - half, 0.12 + half), abs=1e-9)


@pytest.mark.parametrize(("wins", "losses", "n"), [(0, 0, 1), (1, 0, 1), (0, 0, 48), (48, 0, 48), (0, 48, 48)])
def test_bonett_price_keeps_a_width_at_the_ends(wins, losses, n):
    interval = paired_proportions(wins, losses, n)
    assert -1 <= interval.low <= (wins - losses) / n <= interval.high <= 1
    assert interval.high - interval.low > 0.01


def test_bonett_price_coverage():
    # Exact, over all (wins, losses) of 48 pairs with 15 % and 8 % discordant.
    n, won, lost = 48, 0.15, 0.08
    coverage = sum(
        scipy.stats.multinomial.pmf([w, x, n - w - x], n, [won, lost, 1 - won - lost])
        for w in range(n + 1)
        for x in range(n + 1 - w)
        if (i := paired_proportions(w, x, n)).low <= won - lost <= i.high
    )
    assert coverage == pytest.approx(0.955, abs=0.015)


def test_paired_proportions_refuse_impossible_counts():
    with pytest.raises(ValueError, match="no paired"):
        paired_proportions(3, 3, 5)


def test_one_seed_comparison_counts_by_task():
    ours, theirs = np.array([1, 1, 1, 0, 0, 1]), np.array([0, 0, 1, 0, 1, 1])
    result = compare_one_seed(ours, theirs)
    assert (result.wins, result.losses, result.pairs, result.test) == (2, 1, 6, "mcnemar")
    assert result.difference == pytest.approx(1 / 6)
    assert result.p == mcnemar(2, 1)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [([0.5, 1], [0, 1], "successes"), ([1, 0, 1], [1, 0], "equally long"), ([], [], "equally long")],
)
def test_one_seed_comparison_refuses_scores_and_other_lengths(ours, theirs, message):
    with pytest.raises(ValueError, match=message):
        compare_one_seed(np.array(ours), np.array(theirs))


def test_no_difference_at_all_is_no_evidence():
    values = np.ones((3, 20))
    result = compare_seeds(values, values)
    assert (result.difference, result.p, result.wins, result.losses) == (0.0, 1.0, 0, 0)
    assert result.interval.low < 0 < result.interval.high


def test_equal_differences_on_few_tasks_are_no_proof():
    # Every one of 3 tasks better under both seeds. Draws of equal differences never reach zero, but three signs that
    # agree happen by chance in 2 of 8 cases.
    result = compare_seeds(np.ones((2, 3)), np.zeros((2, 3)))
    assert result.difference == 1.0
    assert result.p == 0.25
    assert result.interval.low < 1.0


def test_swapping_the_sides_mirrors_the_difference():
    rng = np.random.default_rng(0)
    ours, theirs = (rng.random((3, 60)) < 0.7).astype(float), (rng.random((3, 60)) < 0.5).astype(float)
    one, other = compare_seeds(ours, theirs), compare_seeds(theirs, ours)
    assert one.difference == pytest.approx(-other.difference)
    assert (one.wins, one.losses) == (other.losses, other.wins)
    assert one.interval.low == pytest.approx(-other.interval.high, abs=0.01)
    assert one.p == pytest.approx(other.p, abs=0.01)


def test_pairs_with_a_missing_side_are_left_out():
    ours = np.array([[1.0, 1, np.nan, 0], [1, 0, 1, np.nan]])
    theirs = np.array([[0.0, 1, 1, 0], [np.nan, 0, 0, 1]])
    result = compare_seeds(ours, theirs)
    # Left: (0,0) +1, (0,1) 0, (0,3) 0, (1,1) 0, (1,2) +1.
    assert (result.pairs, result.wins, result.losses) == (5, 2, 0)
    assert result.difference == pytest.approx(2 / 5)


def test_nothing_in_common_is_an_error():
    with pytest.raises(ValueError, match="needs finite"):
        compare_seeds(np.array([[1.0, np.nan]]), np.array([[np.nan, 1.0]]))
    with pytest.raises(ValueError, match="same seeds"):
        compare_seeds(np.ones((2, 3)), np.ones((1, 3)))


def test_one_seed_bootstrap_agrees_with_mcnemar():
    # 20 wins and 6 losses of 134: exact p 0.0094; the bootstrap of the same pairs must say much the same.
    difference = np.array([1.0] * 20 + [-1.0] * 6 + [0.0] * 108)
    baseline = np.where(difference > 0, 0.0, 1.0)
    result = compare_seeds((baseline + difference)[None], baseline[None])
    assert mcnemar(20, 6) == pytest.approx(0.0094, abs=1e-4)
    assert 0.003 < result.p < 0.02
    reference = paired_proportions(20, 6, 134)
    assert (result.interval.low, result.interval.high) == pytest.approx((reference.low, reference.high), abs=0.01)


def test_false_positives_of_the_seeds_bootstrap_stay_near_the_level():
    # Two methods that do not differ, three seeds each with their own luck. 300 trials: standard error 1.3 points.
    rng = np.random.default_rng(1)
    rejected = 0
    for _ in range(300):
        tasks = rng.normal(0.5, 1.5, (1, 60))
        arms = [
            (rng.random((3, 60)) < 1 / (1 + np.exp(-(tasks + rng.normal(0, 0.2, (3, 1)))))).astype(float)
            for _ in range(2)
        ]
        rejected += compare_seeds(*arms, draws=1000).p < 0.05
    assert rejected / 300 < 0.09


@settings(max_examples=15, deadline=None)  # statsmodels takes a tenth of a second a call
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_equals_statsmodels(p_values):
    assert holm(p_values) == pytest.approx(list(multipletests(p_values, method="holm")[1]), abs=1e-12)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    with pytest.raises(ValueError, match="not p-values"):
        holm([0.2, 1.2])
