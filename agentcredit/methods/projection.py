"""Weighted projection onto a box with a fixed budget: how ProAS and AlignOPSD bound weights and still conserve.

    minimise Σ n_t (w_t − raw_t)²   subject to  lo ≤ w_t ≤ hi,  Σ n_t w_t = budget

The solution is w = clip(raw − ν, lo, hi) for one number ν. As a function of ν the budget is piecewise linear and
non-increasing, so ν is found exactly between two of its at most 2T kinks; no iteration, no tolerance.
"""

from __future__ import annotations

import numpy as np


def project_to_box(
    raw_T: np.ndarray, mass_T: np.ndarray, lo: float, hi: float, budget: float | None = None
) -> np.ndarray:
    """The weights nearest to ``raw_T`` inside [lo, hi] that spend the budget: float64 [T].

    Clipping alone would lose what lies outside the box; here the rest of the weights take it over, all by the same amount.

    Args:
        raw_T: weights before the bound.
        mass_T: what one unit of each weight costs (tokens, or penalty mass), not negative.
        lo: smallest weight.
        hi: largest weight.
        budget: Σ mass·w to meet; None: that of ``raw_T``.

    Raises:
        ValueError: no weights inside the box meet the budget.
    """
    raw_T = np.asarray(raw_T, dtype=np.float64)
    mass_T = np.asarray(mass_T, dtype=np.float64)
    target = float(mass_T @ raw_T) if budget is None else budget
    total = float(mass_T.sum())
    slack = 1e-9 * max(1.0, abs(target), total * max(abs(lo), abs(hi)))
    if not lo * total - slack <= target <= hi * total + slack:
        raise ValueError(
            f"budget {target:g} lies outside [{lo * total:g}, {hi * total:g}], what weights in [{lo:g}, {hi:g}] can spend"
        )
    if budget is None and np.all((raw_T >= lo) & (raw_T <= hi)):
        return raw_T.copy()

    def spent(nu: float) -> float:
        return float(mass_T @ np.clip(raw_T - nu, lo, hi))

    kinks = np.unique(np.concatenate([raw_T - hi, raw_T - lo]))  # spent() is linear between neighbours
    left, right = 0, len(kinks) - 1  # at the first kink every weight is at hi, at the last one at lo
    while right - left > 1:
        middle = (left + right) // 2
        if spent(kinks[middle]) >= target:
            left = middle
        else:
            right = middle
    high, low = spent(kinks[left]), spent(kinks[right])
    share = (high - target) / (high - low) if high > low else 0.0
    nu = kinks[left] + np.clip(share, 0.0, 1.0) * (kinks[right] - kinks[left])
    return np.clip(raw_T - nu, lo, hi)
