"""Evaluates a run from its folder: which weights, which split, which policy."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from agentcredit.assembly import Engine, Stage, load_engine, open_stage
from agentcredit.config import RunConfig
from agentcredit.envs.panels import Panel, build_panel, split_for
from agentcredit.errors import MissingError, UsageError
from agentcredit.evaluation import Identity, evaluate, model_speaker, other_temperature, scripted_speaker
from agentcredit.forecaster.ensemble import Ensemble, RerankingPolicy
from agentcredit.forecaster.training import Forecaster, Recipe, forecaster_of
from agentcredit.methods.cope import CopeParams
from agentcredit.methods.forecasts import Writer
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
    rerank: Ensemble | None = None,
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
        rerank: choose among candidates by a forecaster of these weights, which is trained first if it is not there. Kept in a
            file of its own, as a method of its own.
        progress: is told what happens.

    Returns:
        The file of outcomes.

    Raises:
        UsageError: there is no such split, or nothing to rerank: candidates drawn greedily, the weights of the start.
        MissingError: no such checkpoint, or it is broken; no stored success to train a forecaster on.
        RunFailed: too many harness failures.
    """
    config = run.config
    if temperature is not None:
        config = config.model_copy(update={"eval": config.eval.model_copy(update={"temperature": temperature})})
    weights = checkpoint_folder(run, checkpoint) if policy == MODEL else None
    step = int(weights.name.removeprefix("step-")) if weights else WARM_START_STEP
    if rerank is not None:
        _check_rerank(config, run, weights)
    ranked = rerank.label() if rerank is not None else ""
    progress.phase(f"connecting to {config.env.name}")
    stage = open_stage(config, run.path / "logs" / "eval.log")
    try:
        panel = build_panel(stage.client, _split(config, split), config.env.task_types, limit)
        path = run.eval_path(panel.name, step, policy, other_temperature(run, config), ranked)
        if _is_done(path, config, stage, panel, policy):
            progress.phase(f"{panel.name} is evaluated already")
            return path
        tasks = panel.select(stage.client)
        if policy == MODEL:
            progress.phase(f"loading the model '{config.policy.model}'")
            engine = _engine(run, config, stage, weights, progress)
            method = config.method
            identity = Identity(MODEL, method.name, build(method).label(), method.base, engine.start.hash, step)
            if rerank is not None and weights is not None:
                forecaster = prepare(run, config, stage, weights, rerank.horizon, progress)
                engine = replace(engine, policy=reranking(engine, forecaster, stage, rerank))
                own = {"method": f"{method.name}+rerank", "label": f"{identity.label}+{ranked}", "rerank": ranked}
                identity = replace(identity, **own)
            speaker = model_speaker(config, stage, engine, panel.split)
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


def prepare(
    run: RunDir, config: RunConfig, stage: Stage, weights: Path, horizon: int, progress: Progress
) -> Forecaster:
    """The forecaster of a checkpoint's weights: loaded where it was trained before, else trained now.

    Raises:
        MissingError: the run has no stored success, or peft is not installed.
    """
    progress.phase("loading the forecaster")
    engine = _engine(run, config, stage, weights, progress)
    manifest = hashlib.sha256((weights / "manifest.json").read_bytes()).hexdigest()
    step = int(weights.name.removeprefix("step-"))
    terse = stage.prompts.style == "terse"
    return forecaster_of(run, step, manifest, engine, terse, Recipe(horizon=horizon), progress)


def train_forecaster(run: RunDir, checkpoint: int | None, horizon: int, progress: Progress) -> Forecaster:
    """The forecaster that ``eval --rerank forecaster`` would use of a checkpoint (None: the last whole one).

    Raises:
        UsageError: the run has no checkpoint.
        MissingError: no such checkpoint, or it is broken; no stored success; peft is not installed.
    """
    weights = checkpoint_folder(run, checkpoint)
    _check_weights(run, weights)
    assert weights is not None
    progress.phase(f"connecting to {run.config.env.name}")
    stage = open_stage(run.config, run.path / "logs" / "eval.log")
    try:
        return prepare(run, run.config, stage, weights, horizon, progress)
    finally:
        stage.client.close()


def reranking(engine: Engine, forecaster: Forecaster, stage: Stage, ensemble: Ensemble) -> RerankingPolicy:
    """The engine's policy, choosing among candidates by the forecaster."""
    from agentcredit.config import LossConfig, OptimConfig, TrainConfig
    from agentcredit.training.learner import Learner

    device = str(forecaster.model.device)
    learner = Learner(forecaster.model, LossConfig(), OptimConfig(), TrainConfig(), 1.0, device)
    params = CopeParams(horizon=ensemble.horizon)
    writer = Writer(engine.template, stage.prompts.style == "terse", params)
    return RerankingPolicy(engine.policy, learner, engine.template, writer, ensemble)


def _check_weights(run: RunDir, weights: Path | None) -> None:
    if weights is None:
        raise UsageError(
            f"A forecaster needs weights that {run.name} trained: it learns from the episodes that led to them. "
            "Leave --checkpoint -1 out, or train the run."
        )


def _check_rerank(config: RunConfig, run: RunDir, weights: Path | None) -> None:
    _check_weights(run, weights)
    if config.eval.temperature == 0:
        raise UsageError("--rerank needs candidates that differ: give a --temperature above 0.")


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
