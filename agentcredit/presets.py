"""Defaults that depend on the environment, its size and the model, by full key.

They stand above the model's own defaults and below files, variables and flags. Where a published recipe fixes a value
it is taken from there; the rest is our choice, with its reason beside it.
"""

from __future__ import annotations

from typing import Any

from agentcredit.policies.models import SMOLLM2, TINY

_ENVIRONMENTS: dict[str, dict[str, Any]] = {
    # Fifty turns is what every paper plays on ALFWorld (verl-agent, GiGPO, ProAS).
    "alfworld": {
        "env.train_split": "train",
        "env.dev_split": "valid_seen",
        "env.max_turns": 50,
        "env.layout": "dialogue",
    },
    # Thirty rounds as in AgentGym-RL. A JVM of some 300 MiB holds one live episode, hence few workers. Observations are
    # long (a room's full description), so that a growing conversation would soon push its own beginning out.
    "scienceworld": {
        "env.train_split": "train",
        "env.dev_split": "dev",
        "env.max_turns": 30,
        "env.layout": "window",
        "env.processes": 4,
        "policy.max_context": 1536,
    },
}

# Any other environment: the common names of splits; turns and layout are the environment's own.
_OTHERS: dict[str, Any] = {"env.train_split": "train", "env.dev_split": "dev"}

# Seven receptacles: the searching expert needs 20 turns at most, so that 24 leave room for a few wrong visits.
_ALFWORLD_SMALL: dict[str, Any] = {"env.max_turns": 24}

# verl-agent's settings, which GiGPO, SDAR and AlignOPSD share: a prompt of 2048 tokens rebuilt each turn from the last
# two (observation, action) pairs, responses of 512 tokens, 16 tasks × 8, learning rate 1e-6, KL 0.01.
_LARGE: dict[str, Any] = {
    "env.layout": "window",
    "env.show_admissible": True,
    "policy.max_new_tokens": 512,
    "policy.max_context": 2560,
    "policy.restrict_actions": False,
    "loss.kl": 0.01,
    "optim.lr": 1e-6,
    "train.steps": 150,
    "train.tasks_per_step": 16,
    "train.eval_every": 5,
    "train.eval_tasks": 128,
}

# Attention over padding costs a CPU more than many small batches do (benchmarks/bench_learner.py).
# Under restricted sampling an action is never invalid, and where a malformed answer slips through in a group of equal
# outcomes, the penalty's normalised advantage would be the whole signal.
_TINY: dict[str, Any] = {"train.tokens_per_microbatch": 2048, "method.invalid_mode": "off"}

# A real but small instruction model on a CPU: short thoughts, or a single step takes an hour.
_SMOLLM2: dict[str, Any] = {
    "env.layout": "window",
    "env.show_admissible": True,
    "policy.max_new_tokens": 64,
    "policy.max_context": 1024,
    "optim.lr": 1e-5,
}


def defaults(env: str, size: str, official: bool, model: str) -> dict[str, tuple[Any, str]]:
    """Key to (value, what it is a default of), for one environment and model."""
    layers = [(f"default of {env}", _ENVIRONMENTS.get(env, _OTHERS))]
    if env == "alfworld" and size == "small" and not official:
        layers.append(("default of small ALFWorld games", _ALFWORLD_SMALL))
    if model == SMOLLM2:
        layers.append((f"default of {SMOLLM2}", _SMOLLM2))
    elif model == TINY:
        layers.append((f"default of {TINY}", _TINY))
    else:
        layers.append(("default of models above 1B (verl-agent's settings)", _LARGE))
    return {key: (value, origin) for origin, values in layers for key, value in values.items()}
