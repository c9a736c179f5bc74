"""Paired comparisons: the same tasks, and with several seeds the same seeds, under two methods.

Pairing is what makes a few hundred tasks enough: tasks that both methods solve, or both fail, say nothing about their
difference. Pure functions; numpy only. Suffixes: ``_S`` seeds, ``_T`` tasks, ``_B`` bootstrap draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from agentcredit.stats.intervals import DRAWS, Interval, check_matrix, hierarchical_draws, percentile_interval

ONE_EACH_WAY = (-1.0, 1.0)
"""Pseudo-pairs of a difference of success rates, one for each side (Bonett and Price 2012)."""

_RNG_SEED = 20_260_102


@dataclass(frozen=True, slots=True)
class Comparison:
    """A method minus its baseline.

    ``difference`` in the unit of the values; ``p`` two-sided; ``pairs`` counts (seed, task) pairs; ``wins`` and
    ``losses`` are pairs in which the method did better and worse; ``test`` is ``mcnemar`` or ``bootstrap``.
    """

    difference: float
    interval: Interval
    p: float
    pairs: int
    wins: int
    losses: int
    test: str


def mcnemar(wins: int, losses: int) -> float:
    """Exact two-sided p-value of McNemar's test: under no difference, wins are Binomial(wins + losses, 1/2).

    Raises:
        ValueError: a negative count.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"counts cannot be negative: {wins}, {losses}")
    discordant = wins + losses
    tail = sum(math.comb(discordant, i) for i in range(min(wins, losses) + 1))
    # Integer arithmetic up to the division: no rounding for thousands of pairs.
    return min(1.0, 2 * tail / 2**discordant)


def paired_proportions(wins: int, losses: int, n: int, level: float = 0.95) -> Interval:
    """Adjusted Wald interval of a difference of paired proportions (Bonett and Price 2012).

    One pseudo-pair for each side keeps it honest where no pair, or every pair, is discordant.

    Raises:
        ValueError: n is 0, or wins and losses do not fit into n.
    """
    if n < 1 or wins < 0 or losses < 0 or wins + losses > n:
        raise ValueError(f"no paired proportions: wins={wins}, losses={losses}, n={n}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    won, lost = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
    centre = won - lost
    half = z * math.sqrt((won + lost - centre * centre) / (n + 2))
    difference = (wins - losses) / n
    return Interval(
        max(-1.0, min(centre - half, difference)), min(1.0, max(centre + half, difference)), "paired", level
    )


def compare_one_seed(success_T: np.ndarray, baseline_T: np.ndarray, level: float = 0.95) -> Comparison:
    """Compares successes (0 or 1) task by task under one seed: exact McNemar, Bonett-Price interval.

    Raises:
        ValueError: other values than 0 and 1, no task, or unequal lengths.
    """
    ours, theirs = np.asarray(success_T, dtype=np.float64), np.asarray(baseline_T, dtype=np.float64)
    if ours.shape != theirs.shape or ours.ndim != 1 or not ours.size:
        raise ValueError(f"needs two equally long lists of tasks, got shapes {ours.shape} and {theirs.shape}")
    if not np.isin(ours, (0, 1)).all() or not np.isin(theirs, (0, 1)).all():
        raise ValueError("McNemar's test is for successes (0 or 1); use compare_seeds for means and scores")
    wins, losses, n = int((ours > theirs).sum()), int((ours < theirs).sum()), ours.size
    interval = paired_proportions(wins, losses, n, level)
    return Comparison((wins - losses) / n, interval, mcnemar(wins, losses), n, wins, losses, "mcnemar")


def compare_seeds(
    values_ST: np.ndarray,
    baseline_ST: np.ndarray,
    pseudo: Sequence[float] = ONE_EACH_WAY,
    level: float = 0.95,
    draws: int = DRAWS,
    rng_seed: int = _RNG_SEED,
) -> Comparison:
    """Paired hierarchical bootstrap of the mean difference (see ``intervals.hierarchical_bootstrap``).

    Two-sided p: twice the smaller share of draws at or beyond zero. It is never below 2^(1-m), m being the number of
    tasks whose mean differs: m paired signs cannot be more surprising than all of them agreeing, however
    sure the bootstrap of equal differences looks.

    Args:
        values_ST: the method's values [seeds, tasks]; NaN where there is none.
        baseline_ST: the baseline's, same seeds and tasks in the same order. Pairs with a NaN on either side are left out.
        pseudo: differences of pseudo-tasks: :data:`ONE_EACH_WAY` for success rates, none for scores.
        level: confidence level.
        draws: bootstrap draws.
        rng_seed: seed of the draws.

    Raises:
        ValueError: shapes differ, or no pair is left.
    """
    ours, theirs = np.asarray(values_ST, dtype=np.float64), np.asarray(baseline_ST, dtype=np.float64)
    if ours.shape != theirs.shape or ours.ndim != 2:
        raise ValueError(f"needs the same seeds and tasks on both sides, got shapes {ours.shape} and {theirs.shape}")
    difference = ours - theirs
    present = ~np.isnan(difference)
    difference = check_matrix(difference[present.any(axis=1)][:, present.any(axis=0)])
    estimate = float(np.nanmean(difference))
    draws_B = hierarchical_draws(difference, pseudo, draws, np.random.default_rng(rng_seed))
    tail = min(int((draws_B <= 0).sum()), int((draws_B >= 0).sum()))
    differing = int((np.nanmean(difference, axis=0) != 0).sum())
    p = min(1.0, max(2 * (tail + 1) / (draws + 1), 2.0 ** (1 - differing)))
    return Comparison(
        difference=estimate,
        interval=percentile_interval(draws_B, estimate, "paired", level),
        p=p,
        pairs=int((~np.isnan(difference)).sum()),
        wins=int((difference > 0).sum()),
        losses=int((difference < 0).sum()),
        test="bootstrap",
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given (Holm 1979): they bound the chance of any false claim among them.

    Raises:
        ValueError: a value outside 0..1.
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError(f"not p-values: {list(p_values)}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
