"""A run's model and environment after the fact: what a method may ask of them, opened when it first asks.

Methods that need no model (grpo, gigpo, proas, …) then run in a second, without torch, and where the environment is not
installed; those that need one get the weights that played the step, if the run still has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from agentcredit import outcomes
from agentcredit.assembly import Engine, Stage, open_stage
from agentcredit.envs.base import ExpertEpisode
from agentcredit.errors import MissingError
from agentcredit.home import home
from agentcredit.methods.base import Tools
from agentcredit.policies.models import SMOLLM2, TINY, smollm2_folder
from agentcredit.policies.noise import generator
from agentcredit.rundir import RunDir
from agentcredit.training.checkpoint import problem_of
from agentcredit.training.rows import Row


class Offline:
    """What a stored run offers to methods; close it when done (``with``)."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._engine_of: tuple[Path, Engine] | None = None
        self._learner: Any = None
        self._found: dict[int, tuple[Path, str]] = {}
        self._stage: Stage | None = None
        self.weights_of: dict[int, str] = {}
        """Steps whose methods asked for a model, and which weights they got; ``=`` before those that played the step."""

    def __enter__(self) -> Offline:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stage is not None:
            self._stage.client.close()

    def tools(self, step: int) -> Tools:
        """As in training at this step: the same noise, the same limits."""
        config = self.run.config
        key = (config.seed, "method", step)

        return Tools(
            step=step,
            rng=generator(key),
            max_turns=self._max_turns,
            score=lambda pairs: self._engine(step).policy.score(pairs),
            logprobs=lambda rows: self._logprobs(step, rows),
            generate=lambda prompts, keys, *, temperature=None, max_new_tokens=None: self._engine(step).generate(
                config, prompts, [(*key, *own) for own in keys], temperature, max_new_tokens
            ),
            analyse=self._analyser,
            embed=lambda texts: self._encoder(texts),
            expert=self._expert,
            template=_LazyTemplate(self),
            terse=config.policy.prompt == "terse" or (config.policy.prompt == "auto" and config.policy.model == TINY),
        )

    @cached_property
    def _max_turns(self) -> int:
        """The turn budget: the configuration's, else that of any evaluation, which the run began with."""
        budget = self.run.config.env.max_turns
        if budget:
            return budget
        for path in sorted(self.run.evaluations.glob("*.jsonl")):
            with contextlib.suppress(MissingError):
                return outcomes.read(path).header.max_turns
        return self._open_stage().max_turns

    @cached_property
    def _encoder(self) -> Any:
        from agentcredit.encoders import LazyEncoder

        return LazyEncoder(self.run.config.method.encoder)

    @cached_property
    def _analyser(self) -> Any:
        """The run's own analyser, with the answers that the run has kept."""
        from agentcredit.analyser import analyser_of

        if self.run.config.method.analyser == "start":
            source: Path | str = self._start() or self.run.config.policy.model
        else:
            source = ""
        return analyser_of(self.run.config, source, self.run.path / "analyser")

    @cached_property
    def template(self) -> Any:
        """The model's chat template, from the tokenizer alone: it is the same at every step.

        Raises:
            MissingError: the run has no weights to find it beside.
        """
        from agentcredit.policies.dialogue import Template
        from agentcredit.policies.models import load_tokenizer, tokenizer_of

        policy = self.run.config.policy
        return Template(
            load_tokenizer(tokenizer_of(policy, self._weights(self.run.episode_steps()[0])[0])), policy.model
        )

    def _engine(self, step: int) -> Engine:
        """The model with the weights that played the step, or the nearest that are kept."""
        from agentcredit.policies.models import load, tokenizer_of
        from agentcredit.policies.transformers import TransformersPolicy
        from agentcredit.training.warmstart import WarmStart

        folder, name = self._weights(step)
        self.weights_of[step] = name
        if self._engine_of is None or self._engine_of[0] != folder:
            self._engine_of = self._learner = None  # the one before makes room first
            policy = self.run.config.policy
            model, _ = load(policy, folder, tokenizer_of(policy, folder))
            engine = Engine(model, self.template, TransformersPolicy(model, self.template), WarmStart(folder, ""))
            self._engine_of = (folder, engine)
        return self._engine_of[1]

    def _weights(self, step: int) -> tuple[Path, str]:
        """Folder and name of the weights for a step: of the checkpoint before it (the start before the first), else the nearest."""
        if step not in self._found:  # a checkpoint is proved by hashing all of it: once is enough
            self._found[step] = self._find_weights(step - 1)
        return self._found[step]

    def _find_weights(self, wanted: int) -> tuple[Path, str]:
        kept = {
            int(path.name.removeprefix("step-")): path
            for path in self.run.checkpoints.glob("step-*")
            if path.name.removeprefix("step-").isdigit()
        }
        if (start := self._start()) is not None:
            kept[0] = start
        for number in sorted(kept, key=lambda number: (abs(number - wanted), number)):
            if number == 0 or problem_of(kept[number]) is None:
                name = f"step {number}" if number else "start"
                return kept[number], f"= {name}" if number == wanted else name
        raise MissingError(
            f"Run {self.run.name} has no whole checkpoint, which this method needs for its model; "
            "`agentcredit train` writes them (train.checkpoint_every, train.keep_checkpoints)."
        )

    def _start(self) -> Path | None:
        """The weights that training began with: the tiny model's warm start where it is still cached, else the model itself."""
        policy = self.run.config.policy
        if policy.model == SMOLLM2:
            return smollm2_folder()
        if policy.model != TINY:
            return Path(policy.model)
        found = home() / "warmstarts" / f"{self.run.config.env.name}-{self.run.warm_start}"
        return found if (found / "tokenizer.json").is_file() else None

    def _logprobs(self, step: int, rows: Sequence[Row]) -> list[np.ndarray]:
        """By the same way as in training, so that the same weights give the same bits."""
        from agentcredit.training.learner import Learner

        config, model = self.run.config, self._engine(step).model
        if self._learner is None:
            loss = config.loss.model_copy(update={"kl": 0.0})  # nothing is trained: no reference
            self._learner = Learner(
                model, loss, config.optim, config.train, config.policy.temperature, str(model.device)
            )
        return self._learner.logprobs(rows)

    def _expert(self, task_id: str) -> ExpertEpisode | None:
        return self._open_stage().client.experts([task_id])[0]

    def _open_stage(self) -> Stage:
        if self._stage is None:
            self._stage = open_stage(self.run.config, self.run.path / "logs" / "credit.log")
        return self._stage


class _LazyTemplate:
    """The run's chat template, whose tokenizer is loaded when something of it is asked for."""

    def __init__(self, offline: Offline) -> None:
        self._offline = offline

    @property
    def end_id(self) -> int:
        return self._offline.template.end_id

    @property
    def answer_mark(self) -> tuple[int, ...]:
        return self._offline.template.answer_mark

    def encode(self, text: str) -> list[int]:
        return self._offline.template.encode(text)

    def decode(self, ids: Any) -> str:
        return self._offline.template.decode(ids)

    def aside(self, user: str) -> list[int]:
        return self._offline.template.aside(user)


def stored_steps(run: RunDir) -> Iterator[int]:
    """Steps with stored episodes.

    Raises:
        MissingError: there are none.
    """
    steps = run.episode_steps()
    if not steps:
        raise MissingError(
            f"Run {run.name} has no stored episodes: train with train.save_episodes=true (the default), or name another run."
        )
    yield from steps
