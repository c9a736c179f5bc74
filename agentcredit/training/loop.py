"""The training loop: tasks → groups → credit → rows → update → log → evaluate → checkpoint.

It cannot tell the methods apart. Repeating the command continues: the last whole checkpoint is loaded, what came after it
is forgotten, and every later number is the same as if nothing had happened.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from agentcredit.assembly import Engine, Stage, load_engine, method_tools, open_stage
from agentcredit.config import RunConfig
from agentcredit.envs.base import TaskInfo
from agentcredit.envs.panels import Panel, build_panel
from agentcredit.episodes import Group, episode_to_json
from agentcredit.errors import RunFailed
from agentcredit.evaluation import Identity, check_failures, evaluate, model_speaker
from agentcredit.methods.base import Assignment
from agentcredit.methods.compose import Composition
from agentcredit.methods.registry import build
from agentcredit.outcomes import Evaluation, summarise
from agentcredit.progress import Progress, StepReport
from agentcredit.repro import accelerator
from agentcredit.rollout import Played, joined, play
from agentcredit.rundir import RunDir
from agentcredit.tracking import open_tracker, sqlite_uri
from agentcredit.training.checkpoint import load_latest, save
from agentcredit.training.metrics import cache_metrics, rollout_metrics, selection_metrics
from agentcredit.training.rows import build_rows
from agentcredit.training.sampler import other_tasks, tasks_of_step

log = logging.getLogger(__name__)

WARM_START_STEP = -1


@dataclass
class Trainer:
    """One run under way. :func:`train` makes it; its methods are the parts of a step."""

    config: RunConfig
    run: RunDir
    stage: Stage
    engine: Engine
    method: Composition
    learner: Any
    train_tasks: list[TaskInfo]
    train_split: str
    dev: Panel
    dev_tasks: list[TaskInfo]
    progress: Progress

    def collect(self, step: int) -> tuple[list[Group], list[Played]]:
        """The step's groups, and all that was played for them: more than once where the method drops groups."""
        wanted = self.config.train.tasks_per_step
        tasks = tasks_of_step(self.train_tasks, self.config.seed, step, wanted)
        used, kept, played = list(tasks), list[Group](), list[Played]()
        while tasks:
            played.append(self.play(tasks, step))
            kept += [group for group in played[-1].groups() if self.method.keeps(group)]
            if len(kept) >= wanted or len(played) >= self.method.max_batches:
                break
            tasks = other_tasks(self.train_tasks, used, self.config.seed, step, len(played), wanted)
            used += tasks
        return kept[:wanted], played

    def play(self, tasks: Sequence[TaskInfo], step: int) -> Played:
        """``group_size`` siblings of each task."""
        config = self.config
        wanted = [
            (self.stage.task(info, self.train_split), sibling)
            for info in tasks
            for sibling in range(config.train.group_size)
        ]
        speaker = self.engine.speaker(config, self.stage, config.policy.temperature, (config.seed, "train", step))
        played = play(self.stage.client, speaker, wanted, self.stage.settings(config), self.stage.env_version)
        check_failures(played.episodes, config.env.max_failure_share, f"training step {step}")
        return played

    def credit(self, groups: list[Group], step: int) -> Assignment:
        """What the method makes of the groups."""
        tools = method_tools(
            self.config,
            step,
            lambda: self.engine,
            max_turns=self.stage.max_turns,
            logprobs=self.learner.logprobs,
            analyse=self.analyser,
            embed=self.encoder,
            expert=lambda task_id: self.stage.client.experts([task_id])[0],
            template=self.engine.template,
        )
        return self.method.credit(groups, tools)

    def step(self, step: int) -> dict[str, float]:
        """One training step; returns its numbers."""
        began = time.monotonic()
        before = self.stage.client.stats()
        groups, batches = self.collect(step)
        played = joined(batches)
        credited = time.monotonic()
        assignment = self.credit(groups, step)
        rows = build_rows(groups, assignment)
        updated = time.monotonic()
        update = self.learner.update(rows, step - 1)
        ended = time.monotonic()
        if self.config.train.save_episodes:
            self.run.write_episodes(step, _records(groups, assignment))
        tokens = float(update["tokens"]) + sum(episode.n_tokens for episode in played.episodes)
        return {
            **rollout_metrics(played),
            **selection_metrics(len(batches), len(played.groups()), len(groups)),
            **cache_metrics(before, self.stage.client.stats()),
            **assignment.metrics,
            **{f"update/{name}": value for name, value in update.items()},
            "time/credit": updated - credited,
            "time/update": ended - updated,
            "time/step": ended - began,
            "time/tokens_per_s": tokens / max(1e-9, ended - began),
        }

    def evaluate(self, step: int) -> Evaluation:
        """Plays the dev panel with the weights after ``step`` updates (-1: those of the start)."""
        self.progress.phase(f"playing {len(self.dev_tasks)} tasks of {self.dev.split}")
        speaker = model_speaker(self.config, self.stage, self.engine, self.dev.split)
        evaluation = evaluate(self.config, self.run, self.stage, self.dev, self.dev_tasks, speaker, self.identity(step))
        counted = evaluation.counted
        successes = sum(outcome.success for outcome in counted)
        self.progress.evaluated(self.dev.split, max(step, 0), successes, len(counted))
        return evaluation

    def identity(self, step: int) -> Identity:
        """What the run's policy is called in tables."""
        method = self.config.method
        return Identity("transformers", method.name, self.method.label(), method.base, self.engine.start.hash, step)

    def save(self, step: int, totals: Mapping[str, float]) -> None:
        """A checkpoint after ``step`` updates; a folder that transformers can load as it is."""
        state = self.learner.state_dict()
        save(
            self.run.checkpoints,
            step,
            state["model"],
            state["optimizer"],
            {"method": self.method.state_dict(), "totals": dict(totals)},
            self._model_files,
            self.config.train.keep_checkpoints,
        )

    def resume(self) -> tuple[int, dict[str, float]]:
        """Loads the last whole checkpoint, if there is one; returns its step and the totals up to it."""
        checkpoint = load_latest(self.run.checkpoints)
        if checkpoint is None:
            return 0, {}
        self.learner.load_state_dict({"model": checkpoint.model_state, "optimizer": checkpoint.optim_state})
        self.method.load_state_dict(checkpoint.extra["method"])
        return checkpoint.step, checkpoint.extra["totals"]

    @cached_property
    def encoder(self) -> Callable[[Sequence[str]], np.ndarray]:
        """The run's sentence encoder, loaded when a method first asks for it."""
        from agentcredit.encoders import LazyEncoder

        return LazyEncoder(self.config.method.encoder)

    @cached_property
    def analyser(self) -> Callable[[Sequence[str]], list[str]] | None:
        """Who reads failed episodes for the method; None where the run has nobody."""
        from agentcredit.analyser import analyser_of

        start = self.engine.start.folder
        return analyser_of(
            self.config, start if start.exists() else self.config.policy.model, self.run.path / "analyser"
        )

    @cached_property
    def _model_files(self) -> dict[str, bytes]:
        files = {"config.json": self.engine.model.config.to_json_string().encode()}
        start = self.engine.start.folder
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "warmstart.json"):
            if (start / name).is_file():
                files[name] = (start / name).read_bytes()
        return files


def train(config: RunConfig, run: RunDir, progress: Progress) -> None:
    """Trains as the configuration says, in the run's folder, from wherever an earlier attempt left it.

    Raises:
        UsageError, MissingError: a name is wrong or something is missing (before anything is trained).
        RunFailed: too many harness failures, a gradient that is not finite, or a full disk.
    """
    progress.phase(f"connecting to {config.env.name}")
    method = build(config.method)
    stage = open_stage(config, run.log_path)
    try:
        trainer = assemble(config, run, stage, method, progress)
        tracker = open_tracker(config.track, sqlite_uri(config.out))
        run.set_mlflow_run_id(
            tracker.start(run.name, json.loads(config.model_dump_json()), _tags(trainer), run.mlflow_run_id or None)
        )
        status = "FAILED"
        try:
            _loop(trainer, tracker.log)
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            tracker.finish(status)
    finally:
        stage.client.close()


def assemble(config: RunConfig, run: RunDir, stage: Stage, method: Composition, progress: Progress) -> Trainer:
    """A run's parts, ready for its first step; what they are is noted in the run's folder."""
    from agentcredit.training.learner import Learner

    types = config.env.task_types
    train_panel = build_panel(stage.client, config.env.train_split, types, config.env.limit)
    dev_panel = build_panel(stage.client, config.env.dev_split, types, config.train.eval_tasks)
    progress.phase(f"loading the model '{config.policy.model}'")
    engine = load_engine(config, stage, progress)
    learner = Learner(
        engine.model, config.loss, config.optim, config.train, config.policy.temperature, str(engine.model.device)
    )
    run.note(
        panels={panel.name: panel.sha256 for panel in (train_panel, dev_panel)},
        warm_start=engine.start.hash,
        env={"version": stage.spec.version, "package": stage.spec.package, "data_source": stage.spec.data_source},
        template=engine.template.hash,
        prompts=stage.prompts.hash(),
        **accelerator(),
    )
    train_tasks, dev_tasks = train_panel.select(stage.client), dev_panel.select(stage.client)
    split = config.env.train_split
    return Trainer(config, run, stage, engine, method, learner, train_tasks, split, dev_panel, dev_tasks, progress)


def _loop(trainer: Trainer, track: Any) -> None:
    config, run = trainer.config, trainer.run
    done, totals = trainer.resume()
    run.truncate_after(done if done else -1)
    for record in run.metrics():  # the tracker skips what its store already holds
        track(record["step"], {name: value for name, value in record.items() if name != "step"})
    if done == 0:
        start = {"step": 0, **_dev_metrics(trainer.evaluate(WARM_START_STEP))}
        _log(trainer, track, 0, start)
    for step in range(done + 1, config.train.steps + 1):
        trainer.progress.phase(f"step {step} of {config.train.steps}")
        metrics = trainer.step(step)
        totals = _add(totals, metrics)
        last = step == config.train.steps
        if last or (config.train.eval_every and step % config.train.eval_every == 0):
            metrics |= _dev_metrics(trainer.evaluate(step))
        metrics |= {f"total/{name}": value for name, value in totals.items()}
        _log(trainer, track, step, metrics)
        trainer.progress.step(_report(step, config.train.steps, metrics))
        if last or step % config.train.checkpoint_every == 0:
            trainer.save(step, totals)


def _log(trainer: Trainer, track: Any, step: int, metrics: Mapping[str, float]) -> None:
    values = {name: value for name, value in metrics.items() if name != "step"}
    trainer.run.append_metrics(step, values)
    track(step, values)


def _add(totals: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """Running totals: the x-axes of efficiency."""
    grown = {
        "episodes": metrics["rollout/episodes"],
        "env_steps": metrics["rollout/turns_sum"],
        "tokens": metrics["rollout/tokens"],
        "seconds": metrics["time/step"],
    }
    return {name: totals.get(name, 0.0) + float(value) for name, value in grown.items()}


def _dev_metrics(evaluation: Evaluation) -> dict[str, float]:
    summary = summarise(evaluation.outcomes, evaluation.header.max_turns)
    if summary.rate is None:
        raise RunFailed("The dev panel gave no counted episode: every one was ended by the harness; see the run's log.")
    values = {"dev/success": summary.rate, "dev/n": float(summary.n), "dev/score": float(summary.mean_score or 0.0)}
    return values | ({"dev/turns": summary.mean_turns} if summary.mean_turns is not None else {})


def _report(step: int, steps: int, metrics: Mapping[str, float]) -> StepReport:
    return StepReport(
        step=step,
        steps=steps,
        reward=metrics.get("rollout/return", 0.0),
        success=metrics.get("rollout/success", 0.0),
        no_signal=metrics.get("credit/groups_without_signal", 0.0),
        tokens_per_second=metrics["time/tokens_per_s"],
        cache_hits=metrics.get("env/cache_hit_rate"),
        harness_failures=int(metrics["rollout/harness_failures"]),
    )


def _tags(trainer: Trainer) -> dict[str, str]:
    identity = trainer.identity(0)
    return {
        "env": trainer.stage.spec.name,
        "data_source": trainer.stage.spec.data_source,
        "method": identity.method,
        "label": identity.label,
        "warm_start": identity.warm_start,
        "dev_panel": trainer.dev.sha256,
        "fingerprint": trainer.config.fingerprint(),
    }


def _records(groups: list[Group], assignment: Assignment) -> list[dict[str, Any]]:
    """Episodes with their credit, for inspection: advantage of each turn (its token mean)."""
    return [
        {
            **episode_to_json(episode),
            "advantage_T": [float(tokens.mean()) if len(tokens) else 0.0 for tokens in credit.advantage_TN],
        }
        for group, credits in zip(groups, assignment.credits, strict=True)
        for episode, credit in zip(group.episodes, credits, strict=True)
    ]
