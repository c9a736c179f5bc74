"""The numbers of one training step, under the names that are logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from agentcredit.episodes import StopReason
from agentcredit.rollout import Played


def rollout_metrics(played: Played) -> dict[str, float]:
    """What the episodes of a step say about the policy. Harness failures are counted, and kept out of every mean."""
    episodes = [episode for episode in played.episodes if not episode.harness_failed]
    turns = [turn for episode in episodes for turn in episode.turns]
    reasons = Counter(episode.stop_reason for episode in played.episodes)
    values: dict[str, float] = {
        "rollout/episodes": len(episodes),
        "rollout/harness_failures": len(played.episodes) - len(episodes),
        "rollout/turns_sum": len(turns),
        "rollout/tokens": sum(turn.n_tokens for turn in turns),
        "rollout/truncations": sum(turn.truncated_turns > 0 for turn in turns),
        "time/rollout": played.seconds,
        "time/policy": played.policy_seconds,
    }
    values |= {f"stop/{reason.value}": reasons.get(reason, 0) for reason in StopReason}
    if episodes:
        returns = np.array([episode.ret for episode in episodes])
        values |= {
            "rollout/success": float(np.mean([episode.success for episode in episodes])),
            "rollout/score": float(np.mean([episode.score for episode in episodes])),
            "rollout/return": float(returns.mean()),
            "rollout/return_std": float(returns.std()),
            "rollout/turns": len(turns) / len(episodes),
        }
    if turns:
        values["rollout/valid"] = float(np.mean([turn.valid for turn in turns]))
        values["rollout/response_tokens"] = float(np.mean([turn.n_tokens for turn in turns]))
    return values


def selection_metrics(batches: int, played: int, trained: int) -> dict[str, float]:
    """What a method that drops groups made of a step; nothing where each group that was played is trained on at once."""
    if batches == 1 and played == trained:
        return {}
    return {
        "rollout/batches": batches,
        "rollout/groups_played": played,
        "rollout/groups_dropped_share": 1.0 - trained / played if played else 0.0,
    }


def cache_metrics(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What the environment's counters (``EnvClient.stats``) grew by over a step."""
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    steps = grown.get("steps", 0.0)
    values = {
        f"env/{name}": grown[name] for name in ("steps", "steps_simulated", "restarts", "timeouts") if name in grown
    }
    if steps:
        values["env/cache_hit_rate"] = 1.0 - grown.get("steps_simulated", 0.0) / steps
    return values
