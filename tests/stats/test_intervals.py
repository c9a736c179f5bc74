import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from agentcredit.stats.intervals import (
    PLUS_FOUR,
    bootstrap_mean,
    hierarchical_bootstrap,
    hierarchical_draws,
    wilson,
)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 48), (48, 48), (29, 48), (93, 134), (191, 200)])
def test_wilson_equals_scipy(k, n, level):
    reference = scipy.stats.binomtest(k, n).proportion_ci(level, method="wilson")
    interval = wilson(k, n, level)
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_wilson_of_a_published_figure():
    # 191 of 200: 95.5 [91.7, 97.6].
    interval = wilson(191, 200)
    assert (round(100 * interval.low, 1), round(100 * interval.high, 1)) == (91.7, 97.6)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_estimate_and_mirrors(counts):
    k, n = counts
    interval, mirrored = wilson(k, n), wilson(n - k, n)
    assert 0 <= interval.low <= k / n <= interval.high <= 1
    assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-12)


@pytest.mark.parametrize(("k", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_what_is_no_proportion(k, n):
    with pytest.raises(ValueError, match="no proportion"):
        wilson(k, n)


def test_wilson_coverage_is_exact_enough():
    # No simulation: the coverage is a finite sum over k. Wilson's oscillates around 95 %; its mean over p is close.
    n, rates = 48, np.linspace(0.1, 0.9, 81)
    intervals = [wilson(k, n) for k in range(n + 1)]
    inside = np.array([[i.low <= p <= i.high for i in intervals] for p in rates])
    coverage = (inside * scipy.stats.binom.pmf(np.arange(n + 1), n, rates[:, None])).sum(axis=1)
    assert coverage.mean() == pytest.approx(0.95, abs=0.005)
    assert coverage.min() > 0.91


def test_bootstrap_of_a_mean_equals_the_normal_interval_for_many_values():
    scores = np.random.default_rng(0).beta(2, 1, size=400)
    half = 1.96 * scores.std() / np.sqrt(len(scores))
    interval = bootstrap_mean(scores)
    assert (interval.low, interval.high) == pytest.approx(
        (scores.mean() - half, scores.mean() + half), abs=0.05 * 2 * half
    )


def test_bootstrap_agrees_with_scipy():
    scores = np.random.default_rng(1).random(60)
    reference = scipy.stats.bootstrap(
        (scores,), np.mean, method="percentile", n_resamples=10_000, random_state=np.random.default_rng(2)
    ).confidence_interval
    interval = bootstrap_mean(scores)
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high), abs=0.005)


def test_bootstrap_is_the_same_each_time_and_depends_on_its_seed():
    scores = np.random.default_rng(3).random(30)
    assert bootstrap_mean(scores) == bootstrap_mean(scores)
    assert bootstrap_mean(scores) != bootstrap_mean(scores, rng_seed=4)


def test_bootstrap_of_one_or_of_equal_scores_has_no_width():
    for scores in ([0.7], [0.7, 0.7, 0.7]):
        interval = bootstrap_mean(scores)
        assert (interval.low, interval.high) == pytest.approx((0.7, 0.7))


@pytest.mark.parametrize("values", [[], [0.5, float("nan")], [[0.5]]])
def test_bootstrap_refuses_what_it_cannot_average(values):
    with pytest.raises(ValueError, match="finite"):
        bootstrap_mean(values)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 1.0])
def test_one_seed_is_about_as_wide_as_wilson(rate):
    n = 140
    successes = (np.arange(n) < rate * n).astype(float)
    interval, reference = hierarchical_bootstrap(successes[None], PLUS_FOUR), wilson(int(successes.sum()), n)
    assert interval.kind == "bootstrap"
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high), abs=0.02)
    assert interval.high > interval.low


def test_the_same_outcomes_under_five_seeds_are_not_five_times_as_many_tasks():
    successes = (np.random.default_rng(5).random(140) < 0.6).astype(float)
    one = hierarchical_bootstrap(successes[None], PLUS_FOUR)
    five = hierarchical_bootstrap(np.tile(successes, (5, 1)), PLUS_FOUR)
    assert five.high - five.low == pytest.approx(one.high - one.low, rel=0.03)


def test_variance_of_the_draws_is_that_of_a_crossed_design():
    # Seeds at -d, 0, d around 1/2 without any difference between tasks: the variance of the mean of three seeds, estimated
    # without bias, is d^2/3 (sample variance d^2, three seeds). Draws of three from three would give 2/3 of it unscaled.
    values = np.repeat([[0.3], [0.5], [0.7]], 50, axis=1)
    draws = hierarchical_draws(values, (), 40_000, np.random.default_rng(6))
    assert draws.var() == pytest.approx(0.04 / 3, rel=0.03)
    assert draws.mean() == pytest.approx(0.5, abs=0.003)


def test_missing_cells_are_left_out_of_the_estimate():
    values = np.array([[1.0, 0.0, np.nan, 1.0], [1.0, np.nan, 0.0, 1.0]])
    interval = hierarchical_bootstrap(values)
    assert interval.low <= 4 / 6 <= interval.high


def test_a_seed_that_misses_a_hard_task_does_not_look_better():
    # Tasks 0..2 succeed, task 3 fails, under both seeds; the second seed has no outcome of task 3. Its own mean is 1, the
    # first one's 3/4, but within tasks the seeds do not differ, so that only tasks contribute to the width.
    values = np.array([[1.0, 1, 1, 0], [1, 1, 1, np.nan]])
    draws = hierarchical_draws(values, (), 2000, np.random.default_rng(7))
    assert set(np.round(draws, 6)) <= {0.0, 0.25, 0.5, 0.75, 1.0}


@pytest.mark.parametrize(
    "values", [np.zeros((0, 3)), np.zeros(3), np.array([[np.nan, 1.0], [np.nan, 0.0]]), np.array([[np.inf]])]
)
def test_hierarchical_bootstrap_refuses_empty_rows_and_columns(values):
    with pytest.raises(ValueError, match=r"needs finite|no value"):
        hierarchical_bootstrap(values)


def _coverage(seed_sd: float, n_seeds: int, n_tasks: int, trials: int) -> float:
    """Share of simulated comparisons in which the interval holds the true rate: crossed logistic random effects."""
    rng = np.random.default_rng(8)
    effects = rng.normal(0.5, np.hypot(seed_sd, 1.5), size=400_000)
    truth = (1 / (1 + np.exp(-effects))).mean()
    held = 0
    for _ in range(trials):
        logit = 0.5 + rng.normal(0, seed_sd, (n_seeds, 1)) + rng.normal(0, 1.5, (1, n_tasks))
        values = (rng.random((n_seeds, n_tasks)) < 1 / (1 + np.exp(-logit))).astype(float)
        interval = hierarchical_bootstrap(values, PLUS_FOUR, draws=1000)
        held += interval.low <= truth <= interval.high
    return held / trials


@pytest.mark.parametrize(("seed_sd", "n_seeds"), [(0.0, 3), (0.3, 3), (0.3, 5)])
def test_hierarchical_coverage(seed_sd, n_seeds):
    # 400 trials: the standard error of a coverage of 95 % is 1.1 points; the interval is meant to err on the wide side.
    assert 0.92 <= _coverage(seed_sd, n_seeds, 100, 400) <= 0.995
