"""Plays a panel with a policy and writes what came of each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcredit.assembly import Engine, Stage
from agentcredit.config import RunConfig
from agentcredit.envs.base import TaskInfo
from agentcredit.envs.panels import Panel, role_of
from agentcredit.episodes import Episode
from agentcredit.errors import RunFailed
from agentcredit.outcomes import EvalHeader, Evaluation, Outcome, write
from agentcredit.policies.scripted import ExpertPolicy, RandomPolicy
from agentcredit.policies.speakers import TextSpeaker
from agentcredit.rollout import Speaker, play
from agentcredit.rundir import RunDir

WAVE = 64
"""Episodes that are played at once: bounds the cache of keys and values (our choice)."""


@dataclass(frozen=True)
class Identity:
    """What tells the evaluated policy apart from others in a table; ``rerank``: how it chooses among candidates, if it does."""

    policy: str
    method: str
    label: str
    base: str
    warm_start: str
    step: int
    rerank: str = ""


def evaluate(
    config: RunConfig,
    run: RunDir,
    stage: Stage,
    panel: Panel,
    tasks: Sequence[TaskInfo],
    speaker: Speaker,
    identity: Identity,
) -> Evaluation:
    """Plays ``config.eval.repeats`` episodes of each task of the panel and writes the outcomes into the run's folder.

    Raises:
        RunFailed: a larger share of the episodes than ``env.max_failure_share`` are failures of the harness.
    """
    wanted = [(stage.task(info, panel.split), repeat) for info in tasks for repeat in range(config.eval.repeats)]
    episodes: list[Episode] = []
    for start in range(0, len(wanted), WAVE):
        played = play(stage.client, speaker, wanted[start : start + WAVE], stage.settings(config), stage.env_version)
        episodes += played.episodes
    failures = check_failures(episodes, config.env.max_failure_share, f"evaluation on {panel.name}")
    sampled = identity.policy == "transformers"
    other = other_temperature(run, config) if sampled else None
    header = EvalHeader(
        run=run.name,
        env=stage.spec.name,
        env_version=stage.spec.version,
        package=stage.spec.package,
        data_source=stage.spec.data_source,
        official=stage.spec.official,
        split=panel.split,
        role=role_of(stage.spec.name, panel.split),
        step=identity.step,
        panel_name=panel.name,
        panel_sha256=panel.sha256,
        panel_size=len(panel.tasks),
        partial=panel.partial,
        policy=identity.policy,
        temperature=config.eval.temperature if sampled else 0.0,
        own_temperature=other is None,
        repeats=config.eval.repeats,
        rerank=identity.rerank,
        max_turns=stage.max_turns,
        method=identity.method,
        label=identity.label,
        base=identity.base,
        model=config.policy.model,
        seed=config.seed,
        warm_start=identity.warm_start,
        fingerprint=config.fingerprint(),
        comparison=config.comparison(),
        harness_failures=failures,
    )
    evaluation = Evaluation(header, tuple(_outcome(episode) for episode in episodes))
    path = run.eval_path(panel.name, identity.step, identity.policy, other, identity.rerank)
    write(path, header, evaluation.outcomes)
    return evaluation


def other_temperature(run: RunDir, config: RunConfig) -> float | None:
    """``config.eval.temperature`` where it is not the run's own, else None."""
    temperature = config.eval.temperature
    return None if temperature == run.config.eval.temperature else temperature


def model_speaker(config: RunConfig, stage: Stage, engine: Engine, split: str) -> Speaker:
    """The model, sampling for evaluation: noise by seed, task and turn, the same at every step and for every method."""
    return engine.speaker(config, stage, config.eval.temperature, (config.seed, "eval", split))


def scripted_speaker(config: RunConfig, stage: Stage, policy: str, tasks: Sequence[TaskInfo]) -> Speaker:
    """The ``random`` or the ``expert`` policy."""
    if policy == "random":
        return TextSpeaker(RandomPolicy(), (config.seed, "eval"))
    return TextSpeaker(ExpertPolicy(stage.client, [task.id for task in tasks]))


def check_failures(episodes: Sequence[Episode], limit: float, doing: str) -> int:
    """Number of episodes that the harness ended.

    Raises:
        RunFailed: their share is above ``limit``; rates from the rest would no longer stand for the tasks.
    """
    failures = sum(episode.harness_failed for episode in episodes)
    if failures > limit * len(episodes):
        raise RunFailed(
            f"In {doing}, {failures} of {len(episodes)} episodes ended because the environment failed, more than "
            f"env.max_failure_share = {limit:g}; the run's log has the workers' errors. Repeat the command to continue."
        )
    return failures


def _outcome(episode: Episode) -> Outcome:
    return Outcome(
        task_id=episode.task.id,
        task_type=episode.task.type,
        repeat=episode.sibling,
        success=episode.success,
        score=episode.score,
        turns=len(episode.turns),
        stop_reason=episode.stop_reason,
        tokens=episode.n_tokens,
        env_steps=len(episode.turns),
    )
