"""Training runs on the toy corridor: small enough to be repeated, with everything else real."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agentcredit.config import RunConfig
from agentcredit.envs import registry
from agentcredit.progress import Silent
from agentcredit.rundir import RunDir
from tests.envs.corridor import TOY


def register_toy(patch: pytest.MonkeyPatch) -> None:
    """Makes the corridor an environment that can be named, until the patch is undone."""
    entry = registry.EnvEntry("toy", "a corridor", f"{TOY}:make", ())
    patch.setattr(registry, "_BUILT_IN", (*registry._BUILT_IN, entry))
    patch.setenv("AGENTCREDIT_TOY_PYTHON", sys.executable)


def config(out: Path, **changes: Any) -> RunConfig:
    """A run of a few seconds; ``changes`` are full keys with ``__`` for the dot."""
    values: dict[str, Any] = {
        "name": "run",
        "out": str(out),
        "env": {"name": "toy", "train_split": "train", "dev_split": "dev", "max_turns": 12, "layout": "dialogue"},
        "policy": {"max_new_tokens": 16, "max_context": 512},
        "tiny": {"hidden": 32, "layers": 2, "games": 6, "updates": 120, "batch": 6, "lr": 6e-3, "vocab": 320},
        "train": {
            "steps": 4,
            "tasks_per_step": 2,
            "group_size": 4,
            "eval_every": 2,
            "eval_tasks": 0,
            "checkpoint_every": 1,
        },
        "optim": {"lr": 1e-3},
        "method": {"name": "proas"},
    }
    for key, value in changes.items():
        *sections, name = key.split("__")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return RunConfig.model_validate(values)


def run_training(configuration: RunConfig, progress: Any = None) -> RunDir:
    """Trains, or continues, and closes the attempt."""
    from agentcredit.training.loop import train

    with RunDir.open(configuration) as run:
        train(configuration, run, progress or Silent())
        run.finish("finished")
    return run
