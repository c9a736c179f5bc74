"""Evaluates a run from its folder: which weights, which split, which policy."""

from __future__ import annotations

import re
from pathlib import Path

from agentcredit.assembly import Engine, Stage, load_engine, open_stage
from agentcredit.config import RunConfig
from agentcredit.envs.panels import Panel, build_panel, split_for
from agentcredit.errors import MissingError
from agentcredit.evaluation import Identity, evaluate, model_speaker, other_temperature, scripted_speaker
from agentcredit.methods.registry import build
from agentcredit.outcomes import EvalHeader, read
from agentcredit.policies.dialogue import Template
from agentcredit.policies.models import load, tokenizer_of
from agentcredit.policies.transformers import TransformersPolicy
from agentcredit.progress import Progress
from agentcredit.rundir import RunDir
from agentcredit.training.checkpoint import problem_of
from agentcredit.training.loop import WARM_START_STEP
from agentcredit.training.warmstart import WarmStart

MODEL = "transformers"
POLICIES = (MODEL, "random", "expert")


def evaluate_run(
    run: RunDir,
    split: str,
    *,
    policy: str = MODEL,
    checkpoint: int | None = None,
    limit: int = 0,
    temperature: float | None = None,
    progress: Progress,
) -> Path:
    """Plays a split with a run's model, or with a scripted policy beside it, and stores the outcomes in its folder.

    An evaluation that is there already, of the same weights on the same panel and by the same rules, is not repeated.

    Args:
        run: the run.
        split: a role (``train``, ``dev``, ``test``) or a split of the environment.
        policy: ``transformers`` (the run's model), ``random`` or ``expert``.
        checkpoint: step of the weights, -1 for those of the start; None: the last whole checkpoint, else the start.
        limit: tasks to play, chosen as the panel chooses them; 0: the whole split.
        temperature: of sampling, 0 for greedy; None: ``eval.temperature``. Another one than the run's has a file of its own.
        progress: is told what happens.

    Returns:
        The file of outcomes.

    Raises:
        UsageError: there is no such split.
        MissingError: no such checkpoint, or it is broken.
        RunFailed: too many harness failures.
    """
    config = run.config
    if temperature is not None:
        config = config.model_copy(update={"eval": config.eval.model_copy(update={"temperature": temperature})})
    weights = checkpoint_folder(run, checkpoint) if policy == MODEL else None
    step = int(weights.name.removeprefix("step-")) if weights else WARM_START_STEP
    progress.phase(f"connecting to {config.env.name}")
    stage = open_stage(config, run.path / "logs" / "eval.log")
    try:
        panel = build_panel(stage.client, _split(config, split), config.env.task_types, limit)
        path = run.eval_path(panel.name, step, policy, other_temperature(run, config))
        if _is_done(path, config, stage, panel, policy):
            progress.phase(f"{panel.name} is evaluated already")
            return path
        tasks = panel.select(stage.client)
        if policy == MODEL:
            progress.phase(f"loading the model '{config.policy.model}'")
            engine = _engine(run, config, stage, weights, progress)
            speaker = model_speaker(config, stage, engine, panel.split)
            method = config.method
            label = build(method).label()
            identity = Identity(MODEL, method.name, label, method.base, engine.start.hash, step)
        else:
            speaker = scripted_speaker(config, stage, policy, tasks)
            identity = Identity(policy, policy, policy, "", "", WARM_START_STEP)
        progress.phase(f"playing {len(tasks)} tasks of {panel.name}")
        evaluate(config, run, stage, panel, tasks, speaker, identity)
    finally:
        stage.client.close()
    return path


def checkpoint_folder(run: RunDir, step: int | None) -> Path | None:
    """The folder of a checkpoint, None for the weights of the start.

    Raises:
        MissingError: it is not there, or broken.
    """
    if step == WARM_START_STEP:
        return None
    found = {
        int(path.name[5:]): path for path in run.checkpoints.glob("step-*") if re.fullmatch(r"step-\d+", path.name)
    }
    if step is None:
        whole = [number for number, path in found.items() if problem_of(path) is None]
        if found and not whole:
            raise MissingError(
                f"No checkpoint in {run.checkpoints} is whole; `agentcredit runs verify {run.name}` says why."
            )
        return found[max(whole)] if whole else None
    if step not in found:
        known = ", ".join(map(str, sorted(found))) or "none"
        raise MissingError(f"{run.path} has no checkpoint of step {step} (--checkpoint). There are: {known}.")
    problem = problem_of(found[step])
    if problem:
        raise MissingError(f"The checkpoint {found[step]} is broken: {problem}. Choose another with --checkpoint.")
    return found[step]


def _split(config: RunConfig, name: str) -> str:
    """The split that a role means in this run; any other name is a split itself, which the environment judges."""
    if name == "train":
        return config.env.train_split or split_for(config.env.name, name)
    if name == "dev":
        return config.env.dev_split or split_for(config.env.name, name)
    return split_for(config.env.name, name) if name == "test" else name


def _is_done(path: Path, config: RunConfig, stage: Stage, panel: Panel, policy: str) -> bool:
    if not path.exists():
        return False
    try:
        header = read(path).header
    except MissingError:
        return False
    return _rules(header) == (
        panel.sha256,
        config.fingerprint() if policy == MODEL else header.fingerprint,
        config.eval.temperature if policy == MODEL else header.temperature,
        config.eval.repeats,
        stage.max_turns,
    )


def _rules(header: EvalHeader) -> tuple[str, str, float, int, int]:
    return header.panel_sha256, header.fingerprint, header.temperature, header.repeats, header.max_turns


def _engine(run: RunDir, config: RunConfig, stage: Stage, weights: Path | None, progress: Progress) -> Engine:
    """The model with a checkpoint's weights, or with those that training started from."""
    if weights is None:
        return load_engine(config, stage, progress)
    model, tokenizer = load(config.policy, weights, tokenizer_of(config.policy, weights))
    template = Template(tokenizer, config.policy.model)
    return Engine(model, template, TransformersPolicy(model, template), WarmStart(weights, run.warm_start))
