"""Intervals of one success rate or mean score (field practice and its gaps: Agarwal et al. 2021; Miller 2024).

Which one fits depends on how the numbers came about:

- one seed, one episode per task, success or not: :func:`wilson`;
- one seed, graded scores or several episodes per task: :func:`bootstrap_mean` over tasks;
- several seeds: :func:`hierarchical_bootstrap`, where seeds and tasks both vary.

Pure functions on arrays; numpy only. Suffixes: ``_S`` seeds, ``_T`` tasks, ``_B`` bootstrap draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

DRAWS = 10_000
"""Bootstrap draws; the 2.5 % point of a standard normal is then known to within 0.03."""

PLUS_FOUR = (0.0, 0.0, 1.0, 1.0)
"""Pseudo-tasks of a success rate: two failures and two successes (Agresti and Coull 1998), which centre the draws
where Wilson's interval is centred and keep them from collapsing when every task succeeded or failed."""

_INDICES_AT_ONCE = 4_000_000
_RNG_SEED = 20_260_101


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval. ``kind`` says how it was made: ``wilson``, ``bootstrap``, ``hierarchical``, ``paired``."""

    low: float
    high: float
    kind: str
    level: float = 0.95

    def within(self, low: float, high: float) -> Interval:
        """What of it is possible for a quantity between ``low`` and ``high``, which a hierarchical bootstrap does not know."""
        return replace(self, low=max(self.low, low), high=min(self.high, high))


def wilson(k: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion k/n (Wilson 1927).

    Raises:
        ValueError: not 0 <= k <= n, or n is 0.
    """
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"no proportion: k={k}, n={n}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate = k / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At the ends the formula gives exactly 0 and 1, up to rounding.
    low = 0.0 if k == 0 else centre - half
    high = 1.0 if k == n else centre + half
    return Interval(low, high, "wilson", level)


def bootstrap_mean(
    values_T: Sequence[float] | np.ndarray,
    pseudo: Sequence[float] = (),
    level: float = 0.95,
    draws: int = DRAWS,
    rng_seed: int = _RNG_SEED,
) -> Interval:
    """Percentile bootstrap of the mean over tasks.

    Args:
        values_T: one value per task; with several episodes per task their mean, so that tasks, which are the
            independent units, are what is drawn (Miller 2024, clustered standard errors).
        pseudo: values of pseudo-tasks that join the pool: :data:`PLUS_FOUR` for success rates, none for scores.
        level: confidence level.
        draws: bootstrap draws.
        rng_seed: seed of the draws; fixed, so that a table is the same each time it is made.

    Raises:
        ValueError: no value, or a value that is not finite.
    """
    values = np.asarray(values_T, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"needs one finite value per task, got shape {values.shape}")
    means_B = task_draws(values, pseudo, draws, np.random.default_rng(rng_seed))
    return percentile_interval(means_B, float(values.mean()), "bootstrap", level)


def hierarchical_bootstrap(
    values_ST: np.ndarray,
    pseudo: Sequence[float] = (),
    level: float = 0.95,
    draws: int = DRAWS,
    rng_seed: int = _RNG_SEED,
) -> Interval:
    """Bootstrap of the mean over seeds and tasks: seeds are drawn, then tasks.

    The same tasks are played under every seed, so the drawn tasks are shared by all seeds: five seeds on 140 tasks are
    not 700 tasks. A draw is the drawn tasks' mean over all seeds, plus the mean of the drawn seeds' deviations from
    the grand mean, scaled by sqrt(S / (S - 1)) because deviations from the mean of few seeds are too small (Davison and
    Hinkley 1997, section 3.8). With one seed only tasks vary, and the interval covers tasks only.

    Of 3 seeds, resampling cannot reach beyond the lowest and the highest. Simulated (3 seeds, 140 tasks), it covers 94 %
    where seeds differ by about 5 points (standard deviation) and 85 % where they differ by about 14: show the seeds'
    values beside it.

    Args:
        values_ST: [seeds, tasks], NaN where a task has no outcome under a seed.
        pseudo: as in :func:`bootstrap_mean`.
        level: confidence level.
        draws: bootstrap draws.
        rng_seed: seed of the draws.

    Raises:
        ValueError: a seed or a task without any value.
    """
    values = check_matrix(values_ST)
    means_B = hierarchical_draws(values, pseudo, draws, np.random.default_rng(rng_seed))
    kind = "hierarchical" if len(values) > 1 else "bootstrap"
    return percentile_interval(means_B, float(np.nanmean(values)), kind, level)


def hierarchical_draws(
    values_ST: np.ndarray, pseudo: Sequence[float], draws: int, rng: np.random.Generator
) -> np.ndarray:
    """The draws [B] behind :func:`hierarchical_bootstrap`."""
    n_seeds = len(values_ST)
    draws_B = task_draws(np.nanmean(values_ST, axis=0), pseudo, draws, rng)
    if n_seeds > 1:
        # Deviations are taken within tasks, so that a seed that misses hard tasks does not look better for it.
        deviation_S = np.nanmean(values_ST - np.nanmean(values_ST, axis=0), axis=1)
        deviation_S = (deviation_S - deviation_S.mean()) * math.sqrt(n_seeds / (n_seeds - 1))
        draws_B = draws_B + deviation_S[rng.integers(n_seeds, size=(draws, n_seeds))].mean(axis=1)
    return draws_B


def task_draws(values_T: np.ndarray, pseudo: Sequence[float], draws: int, rng: np.random.Generator) -> np.ndarray:
    """Means [B] of tasks drawn with replacement from the values and the pseudo-tasks."""
    pool = np.concatenate([values_T, np.asarray(pseudo, dtype=np.float64)])
    return np.concatenate([pool[index].mean(axis=1) for index in _index_blocks(len(pool), draws, rng)])


def percentile_interval(draws_B: np.ndarray, estimate: float, kind: str, level: float) -> Interval:
    """The central ``level`` of the draws, widened to hold the estimate itself (pseudo-tasks shift the draws a little)."""
    low, high = np.quantile(draws_B, [(1 - level) / 2, (1 + level) / 2])
    return Interval(min(float(low), estimate), max(float(high), estimate), kind, level)


def check_matrix(values_ST: np.ndarray) -> np.ndarray:
    """The matrix as float64 [seeds, tasks].

    Raises:
        ValueError: it is empty, infinite somewhere, or a seed or a task has no value at all.
    """
    values = np.asarray(values_ST, dtype=np.float64)
    if values.ndim != 2 or values.size == 0 or np.isinf(values).any():
        raise ValueError(f"needs finite values [seeds, tasks], got shape {values.shape}")
    present = ~np.isnan(values)
    if not present.any(axis=1).all() or not present.any(axis=0).all():
        raise ValueError("a seed or a task has no value at all")
    return values


def _index_blocks(n: int, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Indices [block, n] that add up to ``draws`` rows, in blocks that keep the memory bounded."""
    rows = max(1, min(draws, _INDICES_AT_ONCE // n))
    for start in range(0, draws, rows):
        yield rng.integers(n, size=(min(rows, draws - start), n))
