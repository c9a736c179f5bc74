"""The parts of a run put together from its configuration: environment, prompts, model, what methods may ask.

Training, evaluation and re-crediting share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agentcredit.config import RunConfig
from agentcredit.envs.base import EnvClient, EnvSpec, ExpertEpisode, TaskInfo
from agentcredit.envs.panels import build_panel
from agentcredit.episodes import Layout, Task
from agentcredit.methods.base import Conversation, Tools
from agentcredit.policies.base import Request, Response
from agentcredit.policies.dialogue import Template
from agentcredit.policies.models import SMOLLM2, TINY, load, smollm2_folder
from agentcredit.policies.noise import generator
from agentcredit.policies.prompts import Prompts
from agentcredit.policies.speakers import Sampling, TokenSpeaker
from agentcredit.policies.transformers import TransformersPolicy
from agentcredit.progress import Progress
from agentcredit.rollout import Settings
from agentcredit.training.rows import Row
from agentcredit.training.warmstart import WarmStart, warm_start

GENERATED_TOGETHER = 128
"""Prompts of a method that are answered in one batch: their contexts are long, and each has a cache of its own."""


@dataclass(frozen=True)
class Stage:
    """An environment as one run plays it."""

    client: EnvClient
    spec: EnvSpec
    prompts: Prompts
    layout: Layout
    max_turns: int

    @property
    def env_version(self) -> str:
        """Package and data source, as episodes carry them."""
        return f"{self.spec.package}; {self.spec.data_source}"

    def settings(self, config: RunConfig) -> Settings:
        """The rules of an episode."""
        return Settings(self.layout, self.max_turns, config.env.retries)

    def task(self, info: TaskInfo, split: str) -> Task:
        """The task as episodes carry it."""
        return Task(
            self.spec.name, split, info.id, info.type, info.goal, info.content_hash, secrets=tuple(info.secrets)
        )


@dataclass(frozen=True)
class Engine:
    """A model ready to sample, and where its weights came from."""

    model: Any
    template: Template
    policy: Any  # TransformersPolicy, or what wraps one
    start: WarmStart

    def speaker(
        self, config: RunConfig, stage: Stage, temperature: float, noise: tuple[str | int, ...]
    ) -> TokenSpeaker:
        """What answers episodes; ``noise`` begins the key of the sampling noise."""
        sampling = Sampling(
            layout=stage.layout,
            max_new_tokens=config.policy.max_new_tokens,
            max_context=config.policy.max_context,
            temperature=temperature,
            restrict_actions=config.policy.restrict_actions,
            noise=noise,
        )
        return TokenSpeaker(self.policy, self.template, stage.prompts, sampling)

    def generate(
        self,
        config: RunConfig,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[tuple[str | int, ...]],
        temperature: float | None = None,
        max_new_tokens: int | None = None,
    ) -> list[Response]:
        """Free responses to prompts of a method's own; the noise depends on the key alone.

        ``temperature`` and ``max_new_tokens`` are the rollout's where they are None.
        """
        requests = [
            Request(
                session="/".join(map(str, key)),
                context_ids=list(prompt),
                noise_key=key,
                max_new_tokens=config.policy.max_new_tokens if max_new_tokens is None else max_new_tokens,
                temperature=config.policy.temperature if temperature is None else temperature,
            )
            for prompt, key in zip(prompts, keys, strict=True)
        ]
        answers: list[Response] = []
        for start in range(0, len(requests), GENERATED_TOGETHER):
            part = requests[start : start + GENERATED_TOGETHER]
            answers += self.policy.answer(part)
        return answers


def open_stage(config: RunConfig, log_path: Path | None) -> Stage:
    """Connects to the environment; its workers' stderr goes to ``log_path``.

    Raises:
        UsageError: there is no such environment.
        MissingError: it is not set up, or does not start.
    """
    from agentcredit.envs.registry import connect

    client = connect(config.env, log_path=log_path)
    try:
        spec = client.spec()
    except BaseException:
        client.close()
        raise
    prompts = Prompts(spec, prompt_style(config), config.env.show_admissible, config.env.history)
    layout = config.env.layout or spec.default_layout
    return Stage(client, spec, prompts, layout, config.env.max_turns or spec.default_max_turns)


def prompt_style(config: RunConfig) -> Literal["full", "terse"]:
    """What ``policy.prompt`` means for the run's model."""
    if config.policy.prompt == "auto":
        return "terse" if config.policy.model == TINY else "full"
    return config.policy.prompt


def method_tools(
    config: RunConfig,
    step: int,
    engine: Callable[[], Engine],
    *,
    max_turns: int,
    logprobs: Callable[[Sequence[Row]], list[np.ndarray]],
    analyse: Callable[[Sequence[str]], list[str]] | None,
    embed: Callable[[Sequence[str]], np.ndarray],
    expert: Callable[[str], ExpertEpisode | None],
    template: Conversation,
) -> Tools:
    """What a method may ask at a step: one place, so that credit given later is drawn from the same noise as in training.

    ``engine`` is called when a method first asks the model, and not before.
    """
    key = (config.seed, "method", step)

    def generate(
        prompts: Sequence[Sequence[int]],
        keys: Sequence[tuple[str | int, ...]],
        *,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
    ) -> list[Response]:
        return engine().generate(config, prompts, [(*key, *own) for own in keys], temperature, max_new_tokens)

    return Tools(
        step=step,
        rng=generator(key),
        max_turns=max_turns,
        score=lambda pairs: engine().policy.score(pairs),
        logprobs=logprobs,
        generate=generate,
        analyse=analyse,
        embed=embed,
        expert=expert,
        template=template,
        terse=prompt_style(config) == "terse",
    )


def load_engine(config: RunConfig, stage: Stage, progress: Progress) -> Engine:
    """The model with the weights that training starts from.

    The tiny model is cloned from the whole training split: ``env.limit`` says what is trained on, not where that begins.

    Raises:
        MissingError: no such model, or nothing to clone the tiny one from.
    """
    if config.policy.model == TINY:
        tasks = build_panel(stage.client, config.env.train_split, config.env.task_types).select(stage.client)
        start = warm_start(config, stage.client, stage.spec, stage.prompts, stage.layout, tasks, progress)
    else:
        folder = smollm2_folder() if config.policy.model == SMOLLM2 else Path(config.policy.model)
        start = WarmStart(folder, config.policy.model)
    model, tokenizer = load(config.policy, start.folder if start.folder.exists() else config.policy.model)
    template = Template(tokenizer, config.policy.model)
    return Engine(model, template, TransformersPolicy(model, template), start)
