"""What AlignOPSD logs of its sources, segments and weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentcredit.methods.correspondence import Sources


def source_metrics(blocks: Sequence[tuple[Sequence[tuple[int, int]], Sequence[Sources]]]) -> dict[str, float]:
    """How many turns have sources, how much these count, and how far apart in the episode they stand.

    Args:
        blocks: per group its turns as (episode, turn), and the sources of each.
    """
    sources = [one for _, own in blocks for one in own]
    if not sources:
        return {}
    metrics = {
        "alignopsd/with_sources_share": float(np.mean([bool(one.index_K) for one in sources])),
        "alignopsd/alpha_mean": float(np.mean([one.alpha for one in sources])),
        "alignopsd/confidence_mean": float(np.mean([one.confidence for one in sources])),
    }
    apart = [
        (abs(turns[s][1] - turns[t][1]), share)
        for turns, own in blocks
        for t, one in enumerate(own)
        for s, share in zip(one.index_K, one.weight_K, strict=True)
    ]
    if apart:
        steps, shares = np.array(apart).T
        metrics["alignopsd/off_turn_share"] = float(shares[steps > 0].sum() / shares.sum())
        metrics["alignopsd/turns_apart"] = float((steps * shares).sum() / shares.sum())
    return metrics


def weight_metrics(weights: Sequence[np.ndarray], segment_lengths: Sequence[int]) -> dict[str, float]:
    """Spread of the factors of tokens, and the mean length of a segment in turns."""
    metrics = {"alignopsd/segment_turns": float(np.mean(segment_lengths))} if segment_lengths else {}
    every_N = np.concatenate(weights) if weights else np.zeros(0)
    if len(every_N):
        metrics |= {
            "alignopsd/weight_min": float(every_N.min()),
            "alignopsd/weight_max": float(every_N.max()),
            "alignopsd/weight_p95": float(np.percentile(every_N, 95)),
        }
    return metrics
