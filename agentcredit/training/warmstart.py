"""Where training starts: the tiny model cloned from the environment's expert, cached by all that it depends on.

All methods and seeds of a comparison start from identical weights: the folder's name is the hash of the games, the
expert's episodes, the prompts, the shape and the recipe, and whoever comes second finds it there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentcredit.config import LossConfig, OptimConfig, RunConfig, TrainConfig
from agentcredit.envs.base import EnvClient, EnvSpec, ExpertEpisode, TaskInfo
from agentcredit.episodes import Layout
from agentcredit.errors import MissingError
from agentcredit.files import atomic_write_json
from agentcredit.home import home
from agentcredit.locking import FileLock
from agentcredit.policies.actions import response_text
from agentcredit.policies.dialogue import Template
from agentcredit.policies.noise import generator
from agentcredit.policies.prompts import Prompts
from agentcredit.policies.tiny import CHAT_TEMPLATE, new_model, train_tokenizer
from agentcredit.progress import Progress
from agentcredit.training.rows import Row

log = logging.getLogger(__name__)

WARM_START_FORMAT = 1


@dataclass(frozen=True)
class WarmStart:
    """A model folder and the hash of everything that it came from."""

    folder: Path
    hash: str


def warm_start(
    config: RunConfig,
    client: EnvClient,
    spec: EnvSpec,
    prompts: Prompts,
    layout: Layout,
    tasks: Sequence[TaskInfo],
    progress: Progress,
) -> WarmStart:
    """The tiny model after behaviour cloning on expert episodes of ``tasks``, from the cache or made now.

    Args:
        config: ``tiny`` gives shape and recipe.
        client: serves the expert's episodes.
        spec: of the client.
        prompts: what the policy will be told; the clone sees the same.
        layout: of the episodes to come.
        tasks: training tasks, of which ``tiny.games`` are drawn by ``tiny.seed``.
        progress: is told what is going on.

    Raises:
        MissingError: the expert solves none of the tasks.
    """
    order = generator(("warm start", config.tiny.seed)).permutation(len(tasks))
    chosen = [tasks[index] for index in order[: config.tiny.games]]
    key = {
        "format": WARM_START_FORMAT,
        "recipe": config.tiny.model_dump(),
        "package": spec.package,
        "env_version": spec.version,
        "data_source": spec.data_source,
        "tasks": [(task.id, task.content_hash) for task in chosen],
        "prompts": prompts.hash(),
        "template": CHAT_TEMPLATE,
        "layout": layout,
        "max_context": config.policy.max_context,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    folder = home() / "warmstarts" / f"{spec.name}-{digest}"
    with _only_one(folder):
        if not (folder / "warmstart.json").is_file():
            progress.phase(f"playing the expert on {len(chosen)} training tasks")
            episodes = [
                episode for episode in client.experts([task.id for task in chosen]) if episode and _solved(episode)
            ]
            if not episodes:
                raise MissingError(
                    f"The expert of '{spec.name}' solves none of the {len(chosen)} training tasks asked for, so the tiny "
                    "model has nothing to be cloned from; give another model with --model."
                )
            goals = {task.id: task.goal for task in chosen}
            _make(config, prompts, layout, episodes, goals, folder, key, progress)
    return WarmStart(folder, digest)


def expert_rows(
    template: Template, prompts: Prompts, layout: Layout, goal: str, episode: ExpertEpisode, max_context: int
) -> list[Row]:
    """An expert's episode as rows of the same tokens that a rollout would make of it, weight 1 on each response token.

    Dialogue: one row; window: one a turn. A row is cut at ``max_context`` tokens.
    """
    turns = list(zip(episode.steps, episode.results, strict=False))  # results[t] is what was seen before steps[t]
    parts: list[list[tuple[list[int], bool]]] = []
    for number, (step, seen) in enumerate(turns):
        response = [*template.encode(response_text(step.thought, step.action)), template.end_id]
        if layout == "window":
            past = [(before.observation, done.action) for done, before in turns[:number]]
            prompt = template.opening(prompts.system(), prompts.window(goal, past, seen))
            parts.append([(prompt, False), (response, True)])
        elif number == 0:
            prompt = template.opening(prompts.system(), prompts.first(goal, seen))
            parts.append([(prompt, False), (response, True)])
        else:
            parts[0] += [(template.reply(prompts.observation(seen), finished=True), False), (response, True)]
    return [_row(part, max_context) for part in parts]


def _row(parts: Sequence[tuple[list[int], bool]], max_context: int) -> Row:
    ids = np.array([token for tokens, _ in parts for token in tokens][:max_context], dtype=np.int64)
    said = np.array([kind for tokens, kind in parts for _ in tokens][:max_context], dtype=bool)
    nothing = np.zeros(len(ids), dtype=np.float32)
    return Row(ids, np.zeros(len(ids), dtype=bool), nothing, nothing, said.astype(np.float32))


def _make(
    config: RunConfig,
    prompts: Prompts,
    layout: Layout,
    episodes: Sequence[ExpertEpisode],
    goals: dict[str, str],
    folder: Path,
    key: dict[str, Any],
    progress: Progress,
) -> None:
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tiny = config.tiny
    tokenizer = train_tokenizer(_texts(prompts, layout, episodes, goals), tiny.vocab)
    template = Template(tokenizer, "tiny")
    rows = [
        expert_rows(template, prompts, layout, goals[episode.task_id], episode, config.policy.max_context)
        for episode in episodes
    ]
    torch.set_num_threads(config.policy.threads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(tiny.seed)
        model = new_model(tiny, tokenizer, config.policy.max_context)
    losses = _clone(model, rows, config, progress)
    staging = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    facts = {"episodes": len(episodes), "loss": losses, "parameters": sum(p.numel() for p in model.parameters())}
    atomic_write_json(staging / "warmstart.json", {"key": key, **facts})
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)
    log.info(
        "warm start %s: %d expert episodes, last loss %.3f", folder.name, len(episodes), losses[-1] if losses else 0
    )


def _clone(model: Any, rows: Sequence[Sequence[Row]], config: RunConfig, progress: Progress) -> list[float]:
    """Behaviour cloning; returns the mean loss of a response token, update by update."""
    from agentcredit.training.learner import Learner

    tiny = config.tiny
    warmup = max(1, tiny.updates // 20)
    learner = Learner(
        model,
        LossConfig(),
        OptimConfig(lr=tiny.lr, warmup=warmup, decay_steps=tiny.updates),
        TrainConfig(tokens_per_microbatch=config.train.tokens_per_microbatch),
    )
    losses: list[float] = []
    for update in range(tiny.updates):
        drawn = generator(("clone", tiny.seed, update)).choice(len(rows), min(tiny.batch, len(rows)), replace=False)
        batch = [row for index in drawn for row in rows[index]]
        tokens = sum(float(row.ce_weight.sum()) for row in batch)
        scaled = [
            Row(row.ids, row.sampled, row.rollout_logprobs, row.advantage, row.ce_weight / np.float32(tokens))
            for row in batch
        ]
        losses.append(round(learner.update(scaled, update)["loss_ce"], 4))
        progress.phase("cloning the expert, update", update + 1, tiny.updates)
    return losses


def _texts(prompts: Prompts, layout: Layout, episodes: Sequence[ExpertEpisode], goals: dict[str, str]) -> list[str]:
    """All text of the episodes, and the admissible actions that were not taken: their words may be needed too."""
    texts = [prompts.system()] if prompts.system() else []
    for episode in episodes:
        for step, seen in zip(episode.steps, episode.results, strict=False):
            shown = (
                prompts.first(goals[episode.task_id], seen) if layout == "dialogue" else prompts.window("", [], seen)
            )
            texts += [shown, prompts.observation(seen), step.thought, step.action, *(seen.admissible or ())]
        texts.append(goals[episode.task_id])
    return texts


def _solved(episode: ExpertEpisode) -> bool:
    return bool(episode.results) and episode.results[-1].success


def _only_one(folder: Path) -> FileLock:
    """Waits until no other process makes this folder."""
    import time

    from agentcredit.locking import LockHeld

    while True:
        try:
            return FileLock(folder.with_name(f".{folder.name}.lock"))
        except LockHeld:
            time.sleep(1.0)
