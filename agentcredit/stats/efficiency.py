"""Sample efficiency: how soon a method's dev curve reaches a success rate, and how much sooner than the baseline's.

A curve that does not stay at the threshold within the budget has not reached it: its time is *censored*, shown as beyond
the budget, and no speed-up is claimed from it. Pure functions; numpy only. Suffixes: ``_S`` seeds, ``_K`` evaluations in the
order of training, ``_T`` tasks, ``_B`` bootstrap draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentcredit.stats.intervals import DRAWS, Interval

_RNG_SEED = 20_261_130


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """How much sooner a method reaches a threshold than its baseline.

    ``reached_S``, ``baseline_S``: where on the axis each seed's curve reaches it, inf where it does not. ``ratio``: median
    of the baseline's over the median of the method's, above 1 where the method is sooner; None where either median is
    censored. ``interval``: of the same ratio, where a draw's censored median counts as the end of the axis. That pulls it
    towards 1: an interval that holds 1 says little, one that does not holds in spite of it. ``censored``: share of draws in
    which at least one of the two medians was.
    """

    reached_S: tuple[float, ...]
    baseline_S: tuple[float, ...]
    ratio: float | None
    interval: Interval
    censored: float


def reached(x_K: np.ndarray, curve_K: np.ndarray, threshold: float, stay: int = 2) -> np.ndarray:
    """Where curves first reach a threshold and stay: [...], inf where they do not.

    The first evaluation from which ``stay`` of them in a row, or all that are left, are at or above the threshold; between
    it and the evaluation before, where the straight line crosses (our choice: evaluations are many steps apart).

    Args:
        x_K: places of the evaluations, ascending, [..., K] (training steps, tokens, seconds).
        curve_K: success rates, [..., K].
        threshold: success rate.
        stay: evaluations in a row; 1 takes the first that is high enough, by luck or not.

    Raises:
        ValueError: shapes that do not fit, no evaluation, or ``stay`` below 1.
    """
    curve_K = np.asarray(curve_K, dtype=np.float64)
    x_K = np.broadcast_to(np.asarray(x_K, dtype=np.float64), curve_K.shape)
    n = curve_K.shape[-1] if curve_K.ndim else 0
    if n == 0 or stay < 1:
        raise ValueError(f"needs curves of at least one evaluation and stay of at least 1, got {curve_K.shape}, {stay}")
    above_K = curve_K >= threshold
    # An evaluation that is the last, or near it, has only what is left to stay through.
    stays_K = np.stack([above_K[..., k : k + stay].all(axis=-1) for k in range(n)], axis=-1)
    first = stays_K.argmax(axis=-1)[..., None]
    before = np.maximum(first - 1, 0)
    high, low = (np.take_along_axis(curve_K, at, -1)[..., 0] for at in (first, before))
    right, left = (np.take_along_axis(x_K, at, -1)[..., 0] for at in (first, before))
    with np.errstate(divide="ignore", invalid="ignore"):
        # The evaluation before may be above too, one that was followed by a fall: then there is no line to cross.
        share = np.where(low < threshold, (threshold - low) / (high - low), 1.0)
        place = np.where(first[..., 0] == 0, right, left + share * (right - left))
    return np.where(stays_K.any(axis=-1), place, np.inf)


def smoothed(curve_K: np.ndarray, window: int) -> np.ndarray:
    """Means of each evaluation and the ``window`` − 1 before it (of fewer at the beginning), [..., K]."""
    sums_K = np.cumsum(np.asarray(curve_K, dtype=np.float64), axis=-1)
    lagged_K = np.concatenate([np.zeros_like(sums_K[..., :window]), sums_K[..., :-window]], axis=-1)
    counts_K = np.minimum(np.arange(1, sums_K.shape[-1] + 1), window)
    return (sums_K - lagged_K[..., : sums_K.shape[-1]]) / counts_K


def speed_up(
    success_SKT: np.ndarray,
    baseline_SKT: np.ndarray,
    x_SK: np.ndarray,
    baseline_x_SK: np.ndarray,
    threshold: float,
    stay: int = 2,
    window: int = 1,
    level: float = 0.95,
    draws: int = DRAWS,
    rng_seed: int = _RNG_SEED,
) -> SpeedUp:
    """A method's speed-up to a threshold, paired by seed and by task.

    A draw takes seeds and tasks with replacement, the same for both methods, and makes the medians anew.

    Args:
        success_SKT: the method's successes (0 or 1, or rates) [seeds, evaluations, tasks], NaN where a task has none.
        baseline_SKT: the baseline's, for the same seeds and tasks.
        x_SK: places of the method's evaluations on the axis.
        baseline_x_SK: the baseline's.
        threshold: success rate.
        stay: as in :func:`reached`.
        window: as in :func:`smoothed`.
        level: confidence level.
        draws: bootstrap draws.
        rng_seed: seed of the draws.

    Raises:
        ValueError: seeds or tasks differ between the two, or there are none.
    """
    arms = [np.asarray(values, dtype=np.float64) for values in (success_SKT, baseline_SKT)]
    ours, theirs = arms
    if ours.ndim != 3 or theirs.ndim != 3 or ours.shape[::2] != theirs.shape[::2] or not ours.size or not theirs.size:
        raise ValueError(f"needs the same seeds and tasks on both sides, got shapes {ours.shape} and {theirs.shape}")
    axes = [np.asarray(x, dtype=np.float64) for x in (x_SK, baseline_x_SK)]
    places = [
        reached(x, smoothed(np.nanmean(values, axis=2), window), threshold, stay)
        for x, values in zip(axes, arms, strict=True)
    ]
    end = max(float(x.max()) for x in axes)
    medians = [_median(place) for place in places]
    ratio = float(medians[1] / medians[0]) if np.isfinite(medians).all() and medians[0] > 0 else None
    drawn = [
        _drawn_medians(values, x, threshold, stay, window, draws, rng_seed)
        for values, x in zip(arms, axes, strict=True)
    ]
    # A curve that begins above the threshold is there at 0: one unit keeps the ratio finite.
    floor = end / 1000
    ratios_B = np.clip(drawn[1], floor, end) / np.clip(drawn[0], floor, end)
    low, high = np.quantile(ratios_B, [(1 - level) / 2, (1 + level) / 2])
    return SpeedUp(
        tuple(places[0].tolist()),
        tuple(places[1].tolist()),
        ratio,
        Interval(float(low), float(high), "paired", level),
        float(np.mean(np.isinf(drawn[0]) | np.isinf(drawn[1]))),
    )


def _drawn_medians(
    success_SKT: np.ndarray, x_SK: np.ndarray, threshold: float, stay: int, window: int, draws: int, rng_seed: int
) -> np.ndarray:
    """Medians over drawn seeds [B]; the same ``rng_seed`` draws the same seeds and tasks for every arm."""
    n_seeds, n_evaluations, n_tasks = success_SKT.shape
    rng = np.random.default_rng(rng_seed)
    counts_BT = rng.multinomial(n_tasks, np.full(n_tasks, 1 / n_tasks), size=draws).astype(np.float64)
    seeds_BS = rng.integers(n_seeds, size=(draws, n_seeds))
    flat_ZT = success_SKT.reshape(n_seeds * n_evaluations, n_tasks)
    present_ZT = ~np.isnan(flat_ZT)
    weight_BZ = counts_BT @ present_ZT.T
    with np.errstate(divide="ignore", invalid="ignore"):
        curves_BSK = ((counts_BT @ np.nan_to_num(flat_ZT).T) / weight_BZ).reshape(draws, n_seeds, n_evaluations)
    places_BS = reached(x_SK, smoothed(np.nan_to_num(curves_BSK), window), threshold, stay)
    return _median(np.take_along_axis(places_BS, seeds_BS, axis=1))


def _median(places_S: np.ndarray) -> np.ndarray:
    """Medians over the last axis; half way to inf is inf."""
    ordered_S = np.sort(places_S, axis=-1)
    n = ordered_S.shape[-1]
    return (ordered_S[..., (n - 1) // 2] + ordered_S[..., n // 2]) / 2
