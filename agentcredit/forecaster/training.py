"""A forecaster that never touches the policy: LoRA on a frozen copy of a run's weights, trained on the run's stored successes.

CoPE's loss (docs/methods/cope.md) with nothing else: the policy whose forecasts it learns stays as it was. The adapter is kept
in the run's folder, under a name that depends on the weights, the episodes and the recipe, and is not trained twice:

    forecaster/step-000060-K2-<hash>/   adapter.safetensors   forecaster.json
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentcredit.assembly import Engine
from agentcredit.episodes import Episode, Group, episode_from_json
from agentcredit.errors import MissingError
from agentcredit.files import atomic_write_json, naming, sync_folder
from agentcredit.methods.base import Tools, without_credit
from agentcredit.methods.cope import Cope, CopeParams
from agentcredit.methods.cope_probe import accuracy, likelihoods
from agentcredit.methods.forecasts import Writer, forecasts_of
from agentcredit.policies.base import Response
from agentcredit.policies.noise import generator
from agentcredit.progress import Progress
from agentcredit.rundir import RunDir
from agentcredit.training.rows import build_rows

FORECASTER_FORMAT = 1
_ADAPTER, _FACTS = "adapter.safetensors", "forecaster.json"


@dataclass(frozen=True)
class Recipe:
    """How a forecaster is trained. The paper gives no figures: these are ours, sized so that it is minutes for a tiny model.

    ``horizon``   actions beyond the next (K).
    ``steps``     the run's last training steps whose successes it learns from: older ones were another policy's.
    ``updates``, ``episodes``, ``lr``  AdamW updates, successes in each, learning rate after a warm-up of a tenth.
    ``rank``      of the adapter, on every linear layer but the head; its scale is 2 (alpha = 2 · rank).
    ``held_out``  share of the tasks that it is measured on instead.
    """

    horizon: int = 2
    steps: int = 20
    updates: int = 200
    episodes: int = 4
    lr: float = 1e-3
    rank: int = 16
    held_out: float = 0.125


@dataclass(frozen=True)
class Forecaster:
    """A trained one. ``facts`` holds the recipe, counts, and of held-out tasks ``nll_lag{k}`` and ``top1_acc_lag{k}``."""

    folder: Path
    model: Any
    horizon: int
    facts: dict[str, Any]


def forecaster_of(
    run: RunDir, step: int, weights_hash: str, engine: Engine, terse: bool, recipe: Recipe, progress: Progress
) -> Forecaster:
    """The forecaster of a run's weights, trained now if it is not there.

    Args:
        run: gives the episodes, and keeps the result.
        step: training step of the weights; later episodes are not used.
        weights_hash: tells the weights apart from others of that step.
        engine: a model with these weights **of its own**: the adapter is put into it.
        terse: the policy is told no format in words.
        recipe: how it is trained.
        progress: is told what is going on.

    Raises:
        MissingError: the run has no stored success, or peft is not installed.
    """
    stored = [number for number in run.episode_steps() if number <= step][-recipe.steps :]
    key = {"format": FORECASTER_FORMAT, "weights": weights_hash, "steps": stored, "recipe": asdict(recipe)}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    folder = run.path / "forecaster" / f"step-{step:06d}-K{recipe.horizon}-{digest}"
    add_adapter(engine.model, recipe.rank, run.config.seed)
    if (folder / _FACTS).is_file():
        load_adapter(engine.model, folder / _ADAPTER)
        return Forecaster(folder, engine.model, recipe.horizon, facts_of(folder))
    learned, held_out = split_by_task(successes(run, stored), recipe.held_out, run.config.seed)
    if not learned:
        raise MissingError(
            f"{run.path} has no stored success up to step {step} to train a forecaster on; it needs a run that kept its "
            "episodes (train.save_episodes) and won some."
        )
    losses = _train(run, engine, terse, recipe, learned, progress)
    progress.phase("measuring the forecaster")
    facts = {
        **key,
        "episodes": len(learned),
        "held_out_episodes": len(held_out),
        "loss": losses,
        "held_out": measure(engine, run, terse, recipe.horizon, held_out),
    }
    _store(folder, engine.model, facts)
    return Forecaster(folder, engine.model, recipe.horizon, facts)


def facts_of(folder: Path) -> dict[str, Any]:
    """What a forecaster's folder says of it.

    Raises:
        MissingError: it cannot be read.
    """
    try:
        return json.loads((folder / _FACTS).read_text())
    except (OSError, ValueError) as error:
        raise MissingError(
            f"The forecaster {folder} cannot be read ({error}); remove its folder to train it again."
        ) from error


def successes(run: RunDir, steps: Sequence[int]) -> list[Episode]:
    """The successful episodes that the run stored in these steps."""
    episodes: list[Episode] = []
    for step in steps:
        for record in run.read_episodes(step):
            if record["success"]:
                record.pop("advantage_T", None)
                episodes.append(episode_from_json(record))
    return episodes


def split_by_task(episodes: Sequence[Episode], share: float, seed: int) -> tuple[list[Episode], list[Episode]]:
    """(learned from, held out): no task is in both. Some is held out wherever there are two tasks."""
    tasks = sorted({episode.task.id for episode in episodes})
    count = max(1, round(share * len(tasks))) if len(tasks) > 1 else 0
    order = generator(("forecaster", seed, "held out")).permutation(len(tasks))
    kept_back = {tasks[index] for index in order[:count].tolist()}
    learned = [episode for episode in episodes if episode.task.id not in kept_back]
    return learned, [episode for episode in episodes if episode.task.id in kept_back]


def add_adapter(model: Any, rank: int, seed: int) -> None:
    """Freezes the model and puts a LoRA adapter into it, which changes nothing until it is trained.

    Raises:
        MissingError: peft is not installed.
    """
    import torch

    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingError("A forecaster is a LoRA adapter, which needs peft: pip install 'peft>=0.21'.") from error
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"), model)


def load_adapter(model: Any, path: Path) -> None:
    """Puts stored values into the adapter.

    Raises:
        MissingError: the file is damaged, or another model's.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise MissingError(
            f"The forecaster {path} cannot be read ({error}); remove its folder to train it again."
        ) from error
    if stored.keys() != _adapter(model).keys():
        raise MissingError(f"The forecaster {path} is of another model; remove its folder to train it again.")
    model.load_state_dict(stored, strict=False)


def measure(engine: Engine, run: RunDir, terse: bool, horizon: int, episodes: Sequence[Episode]) -> dict[str, float]:
    """``nll``, ``nll_lag{k}`` and ``top1_acc_lag{k}`` of forecasts in these episodes; empty where there are none."""
    params = _params(horizon)
    groups = [Group(episode.task, (episode,)) for episode in episodes]
    forecasts = forecasts_of(groups, params)
    if not forecasts:
        return {}
    writer = Writer(engine.template, terse, params)
    asides = [writer.write(forecast) for forecast in forecasts]
    tools = Tools(0, np.random.default_rng(0), 0, score=engine.policy.score, template=engine.template, terse=terse)

    def generate(
        prompts: Sequence[Sequence[int]],
        keys: Sequence[tuple[str | int, ...]],
        *,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
    ) -> list[Response]:
        own = [(number, *key) for number, key in enumerate(keys)]  # an episode of the same name may come from two steps
        return engine.generate(run.config, prompts, own, temperature, max_new_tokens)

    found = likelihoods(groups, forecasts, asides, tools) | accuracy(groups, forecasts, asides, writer, generate)
    return {name.removeprefix("cope/"): value for name, value in found.items()}


def _train(
    run: RunDir, engine: Engine, terse: bool, recipe: Recipe, episodes: Sequence[Episode], progress: Progress
) -> list[float]:
    """Returns the loss, update by update."""
    from agentcredit.config import LossConfig, OptimConfig, TrainConfig
    from agentcredit.training.learner import Learner

    config, losses = run.config, list[float]()
    learner = Learner(
        engine.model,
        LossConfig(),
        OptimConfig(lr=recipe.lr, warmup=max(1, recipe.updates // 10), weight_decay=0.0),
        TrainConfig(tokens_per_microbatch=config.train.tokens_per_microbatch),
        device=str(engine.model.device),
    )
    method = Cope(_params(recipe.horizon))
    for update in range(recipe.updates):
        rng = generator(("forecaster", config.seed, update))
        drawn = rng.choice(len(episodes), min(recipe.episodes, len(episodes)), replace=False)
        groups = [Group(episodes[index].task, (episodes[index],)) for index in drawn.tolist()]
        tools = Tools(update, rng, 0, template=engine.template, terse=terse)
        assignment = method.extend(groups, without_credit(groups), tools)
        losses.append(round(learner.update(build_rows(groups, assignment), update)["loss_ce"], 4))
        progress.phase("training the forecaster, update", update + 1, recipe.updates)
    return losses


def _params(horizon: int) -> CopeParams:
    return CopeParams(lambda_=1.0, horizon=horizon, log_every=0, probe_every=0)


def _adapter(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.state_dict().items() if "lora_" in name}


def _store(folder: Path, model: Any, facts: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    staging = folder.with_name(f".{folder.name}.{os.getpid()}")
    with naming(folder):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        save_file(
            {name: value.detach().cpu().contiguous() for name, value in _adapter(model).items()}, staging / _ADAPTER
        )
        atomic_write_json(staging / _FACTS, facts)
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
        sync_folder(folder.parent)
