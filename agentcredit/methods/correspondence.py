"""Which turns of siblings made the same decision, and what their contexts say of a response (docs/methods/alignopsd.md).

Over the M turns of one task's episodes: ``similarity_MM[s, t]`` is the cosine between what the *teacher* thought at turn s
and what the *student* thought at turn t. A turn t takes as sources the turns s of other siblings whose thought is near its
own; its response, scored again in their contexts, corrects the teacher's opinion in its own. Ties go to the smaller index.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Aggregation = Literal["probability_mixture", "log_mean"]

_WEB_ACTION = re.compile(r"\s*(search|click)\[(.+)\]\s*", re.DOTALL)


@dataclass(frozen=True)
class Sources:
    """What one turn learns from: ``index_K`` the source turns, ``weight_K`` their shares ω, ``alpha`` how much they count."""

    index_K: tuple[int, ...]
    weight_K: np.ndarray
    confidence: float
    alpha: float


def cosines(source_MD: np.ndarray, target_ND: np.ndarray) -> np.ndarray:
    """Cosines float64 [M, N] of vectors of length 1, to six digits.

    A text compared with itself has 1 exactly. The last bits of a float32 sum would else decide whether it reaches a γ of 1,
    which is what a quantile gives where thoughts repeat.
    """
    return np.round(source_MD.astype(np.float64) @ target_ND.astype(np.float64).T, 6).clip(-1.0, 1.0)


def structural_mask(
    rollout_M: Sequence[int],
    teacher_thought_M: Sequence[bool],
    student_thought_M: Sequence[bool],
    protocol_M: Sequence[str] | None = None,
) -> np.ndarray:
    """Which turns may be a source of which, bool [source, target]: another rollout, both with a thought, one protocol."""
    rollout = np.asarray(rollout_M)
    mask = rollout[:, None] != rollout[None, :]
    mask &= np.asarray(teacher_thought_M, dtype=bool)[:, None] & np.asarray(student_thought_M, dtype=bool)[None, :]
    if protocol_M is not None:
        protocol = np.asarray(protocol_M)
        mask &= protocol[:, None] == protocol[None, :]
    return mask


def select_sources(
    similarity_MM: np.ndarray, structural_MM: np.ndarray, rollout_M: Sequence[int], gamma: float, top_k: int
) -> list[list[int]]:
    """Per target at most ``top_k`` sources: of each rollout its best with similarity ≥ γ, and of these the best."""
    selected: list[list[int]] = []
    for t in range(len(rollout_M)):
        best: dict[int, int] = {}
        for s in np.flatnonzero(structural_MM[:, t] & (similarity_MM[:, t] >= gamma)).tolist():
            known = best.get(rollout_M[s])
            if known is None or similarity_MM[s, t] > similarity_MM[known, t]:
                best[rollout_M[s]] = s
        selected.append(sorted(best.values(), key=lambda s: (-similarity_MM[s, t], s))[:top_k])
    return selected


def same_action(
    similarity: float,
    threshold: float,
    source: str,
    target: str,
    valid: bool,
    web: bool = False,
) -> bool:
    """Whether a source acted as the target did, as the optional filter of sources asks.

    Args:
        similarity: cosine of the two actions' embeddings.
        threshold: least similarity.
        source: the source's (teacher's) action.
        target: the target's (student's) action.
        valid: both actions are valid.
        web: WebShop: both are ``search[…]`` or ``click[…]``, the verb agrees, and for a click what is clicked.
    """
    if not valid or similarity < threshold:
        return False
    if not web:
        return True
    ours, theirs = _WEB_ACTION.fullmatch(source), _WEB_ACTION.fullmatch(target)
    if ours is None or theirs is None or not ours[2].strip() or not theirs[2].strip():
        return False
    return ours[1] == theirs[1] and (ours[1] == "search" or ours[2].strip() == theirs[2].strip())


def weigh_sources(
    selected: Sequence[int], similarity_M: np.ndarray, gamma: float, temperature: float, alpha_max: float
) -> Sources:
    """ω = softmax(similarity/τ_a) over the sources; α = α_max Σ ω clip((similarity − γ)/(1 − γ), 0, 1)."""
    if not selected:
        return Sources((), np.zeros(0), 0.0, 0.0)
    near_K = similarity_M[list(selected)]
    weight_K = _softmax(near_K / temperature)
    sure_K = np.clip((near_K - gamma) / (1.0 - gamma), 0.0, 1.0) if gamma < 1 else np.ones(len(near_K))
    confidence = float(weight_K @ sure_K)
    return Sources(tuple(selected), weight_K, confidence, alpha_max * confidence)


def corrected(
    own_L: np.ndarray, cross_KL: Sequence[np.ndarray], sources: Sources, aggregation: Aggregation
) -> np.ndarray:
    """The teacher's log-probabilities of a response: (1 − α) in its own context + α in the sources', float64 [L]."""
    if not sources.index_K:
        return np.asarray(own_L, dtype=np.float64)
    cross = np.asarray(cross_KL, dtype=np.float64)
    if aggregation == "log_mean":
        mixed_L = sources.weight_K @ cross
    else:
        weighted = np.log(sources.weight_K)[:, None] + cross
        top_L = weighted.max(axis=0)
        mixed_L = top_L + np.log(np.exp(weighted - top_L).sum(axis=0))
    return (1.0 - sources.alpha) * np.asarray(own_L, dtype=np.float64) + sources.alpha * mixed_L


def profiles(
    similarity_MM: np.ndarray, structural_MM: np.ndarray, gamma: float, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Each target's distribution over all of its structural sources, [target, source]; and whether any of them is near."""
    m = len(similarity_MM)
    profile_MM = np.zeros((m, m))
    valid_M = np.zeros(m, dtype=bool)
    for t in range(m):
        sources = np.flatnonzero(structural_MM[:, t])
        if len(sources):
            profile_MM[t, sources] = _softmax(similarity_MM[sources, t] / temperature)
            valid_M[t] = bool(similarity_MM[sources, t].max() >= gamma)
    return profile_MM, valid_M


Distance = Literal["jsd", "entropy", "cosine"]


def profile_distance(p: np.ndarray, q: np.ndarray, kind: Distance = "jsd") -> float:
    """How far two profiles are apart, in [0, 1]: Jensen-Shannon divergence in bits; or difference of entropies; or 1 − cosine."""
    if kind == "cosine":
        norms = float(np.linalg.norm(p) * np.linalg.norm(q))
        return 1.0 - float(p @ q) / norms if norms else 0.0
    if kind == "entropy":
        return abs(_entropy(p) - _entropy(q)) / float(np.log(len(p))) if len(p) > 1 else 0.0
    middle = 0.5 * (p + q)
    return (_entropy(middle) - 0.5 * (_entropy(p) + _entropy(q))) / float(np.log(2))


def turn_distances(
    profile_MM: np.ndarray, valid_M: np.ndarray, structural_MM: np.ndarray, turns: Sequence[int], kind: Distance = "jsd"
) -> tuple[np.ndarray, np.ndarray]:
    """Distance between neighbouring turns of one episode, float64 [T] and bool [T]; place t stands between t−1 and t.

    Counted only where both profiles are valid and both turns have the same structural sources: otherwise what differs is who
    may be compared, not what was decided.
    """
    distance_T, counts_T = np.zeros(len(turns)), np.zeros(len(turns), dtype=bool)
    for t in range(1, len(turns)):
        before, here = turns[t - 1], turns[t]
        if valid_M[before] and valid_M[here] and np.array_equal(structural_MM[:, before], structural_MM[:, here]):
            counts_T[t] = True
            distance_T[t] = profile_distance(profile_MM[before], profile_MM[here], kind)
    return distance_T, counts_T


def _softmax(values: np.ndarray) -> np.ndarray:
    shifted = np.exp(values - values.max())
    return shifted / shifted.sum()


def _entropy(p: np.ndarray) -> float:
    positive = p[p > 0]
    return float(-(positive * np.log(positive)).sum())
