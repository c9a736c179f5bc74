"""Cutting an episode where its decisions change, and sharing its credit segment → turn → token (docs/methods/alignopsd.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from agentcredit.methods.projection import project_to_box


@dataclass(frozen=True)
class Segmentation:
    """Half-open segments of an episode's turns, and why each cut was made; a cut at t begins a segment with turn t."""

    segments: tuple[tuple[int, int], ...]
    semantic: tuple[int, ...] = ()
    guided: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()


def segment(
    distance_T: np.ndarray,
    valid_T: np.ndarray,
    threshold: float,
    shortest: int,
    longest: int,
    fallback_min: float,
) -> Segmentation:
    """Segments of at least ``shortest`` turns (fewer only where the episode has fewer) and at most ``longest``.

    1. Semantic cuts: distances above the threshold, strongest first, where both sides keep ``shortest`` turns.
    2. While a segment is too long, the leftmost is cut: *guided*, at its largest distance of at least ``fallback_min``; or
       *forced*, at the place nearest its middle. Ties go to the earlier turn.

    Args:
        distance_T: between turns t−1 and t (:func:`agentcredit.methods.correspondence.turn_distances`).
        valid_T: whether that distance counts.
        threshold: infinity where no distance of the batch counts.
        shortest: turns of a segment at least.
        longest: at most; at least 2·shortest − 1, or a long segment could not be cut.
        fallback_min: distance that guides a cut at least.
    """
    n = len(distance_T)
    cuts = [0, n]
    semantic: list[int] = []
    for t in sorted(range(1, n), key=lambda t: (-distance_T[t], t)):
        if valid_T[t] and distance_T[t] > threshold and _fits(cuts, t, shortest):
            cuts = sorted([*cuts, t])
            semantic.append(t)
    guided: list[int] = []
    forced: list[int] = []
    while (long := _leftmost_longer(cuts, longest)) is not None:
        begin, end = long
        places = range(begin + shortest, end - shortest + 1)
        guides = [t for t in places if valid_T[t] and distance_T[t] >= fallback_min]
        if guides:
            cut = min(guides, key=lambda t: (-distance_T[t], t))
            guided.append(cut)
        else:
            cut = min(places, key=lambda t: (abs(t - (begin + end) / 2), t))
            forced.append(cut)
        cuts = sorted([*cuts, cut])
    return Segmentation(
        tuple(pairwise(cuts)) if n else (),
        tuple(sorted(semantic)),
        tuple(sorted(guided)),
        tuple(sorted(forced)),
    )


def threshold_of(distances: np.ndarray, quantile: float, low: float, high: float) -> float:
    """The batch's cutting threshold: a quantile of the distances that count, kept in [low, high]; infinity without any."""
    return float(np.clip(np.quantile(distances, quantile), low, high)) if len(distances) else float("inf")


def turn_densities(
    score_T: np.ndarray, tokens_T: np.ndarray, segments: Sequence[tuple[int, int]], temperature: float
) -> np.ndarray:
    """κ before its bound: credit per token of each turn, token mean 1, float64 [T].

        b_j = softmax_j(log N_j + mean of s in j / T_c)      q_t = softmax_{t in j}(log N_t + s_t / T_c)
        κ_t = N · b_j · q_t / N_t

    The logarithms make equal scores give κ = 1 whatever the lengths.
    """
    total = float(tokens_T.sum())
    mass_J = np.array([tokens_T[a:b].sum() for a, b in segments])
    mean_J = np.array([score_T[a:b].mean() for a, b in segments])
    share_J = _softmax(np.log(mass_J) + mean_J / temperature)
    density_T = np.zeros(len(score_T))
    for (a, b), share in zip(segments, share_J, strict=True):
        within = _softmax(np.log(tokens_T[a:b]) + score_T[a:b] / temperature)
        density_T[a:b] = total * share * within / tokens_T[a:b]
    return density_T


Weighting = Literal["capped", "bounded"]


def bounded_densities(
    density_T: np.ndarray, tokens_T: np.ndarray, weighting: Weighting, cap: float, band: float
) -> np.ndarray:
    """The densities nearest to ``density_T`` in [0, cap] (or [1 − band, 1 + band]) with the same token mean of 1."""
    low, high = (0.0, cap) if weighting == "capped" else (1.0 - band, 1.0 + band)
    return project_to_box(density_T, tokens_T, low, high, budget=float(tokens_T.sum()))


def _fits(cuts: Sequence[int], t: int, shortest: int) -> bool:
    left = max(cut for cut in cuts if cut <= t)
    right = min(cut for cut in cuts if cut > t)
    return t - left >= shortest and right - t >= shortest


def _leftmost_longer(cuts: Sequence[int], longest: int) -> tuple[int, int] | None:
    return next(((a, b) for a, b in pairwise(cuts) if b - a > longest), None)


def _softmax(values: np.ndarray) -> np.ndarray:
    shifted = np.exp(values - values.max())
    return shifted / shifted.sum()
