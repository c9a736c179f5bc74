"""The seam of a method, and how methods compose.

A method is an *estimator* (group outcomes to advantages: grpo, rloo, gigpo), a *shaper* (advantages to advantages:
proas) or an *auxiliary* (cross-entropy weights and extra rows: cope, echo). They compose in that order, with the penalty
of invalid actions added after the shapers, so that budgets stay exact and invalidity stays out of the shaping:

    base estimator → shapers → invalid-action residual → auxiliaries

The trainer calls :meth:`Composition.credit` and never learns a method's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict

from agentcredit.envs.base import ExpertEpisode
from agentcredit.episodes import Group
from agentcredit.policies.base import Response
from agentcredit.training.rows import Row

Advantages = list[list[np.ndarray]]
"""``advantages[g][e]`` is a float64 array [T]: one advantage per turn of episode e of group g."""


TokenAdvantages = list[list[tuple[np.ndarray, ...]]]
"""``advantages[g][e][t]`` is a float64 array [n]: one advantage per token of turn t of episode e of group g."""


Kind = Literal["estimator", "shaper", "refiner", "auxiliary"]


class Params(BaseModel):
    """Base of every method's parameters: each field has a sentence, unknown keys are errors, aliases are accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @classmethod
    def keys(cls) -> dict[str, str]:
        """Every accepted key (field names and aliases, e.g. the paper's symbol) with its field's name."""
        accepted: dict[str, str] = {}
        for name, info in cls.model_fields.items():
            accepted[name] = name
            alias = info.validation_alias
            choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
            accepted.update({choice: name for choice in choices if isinstance(choice, str)})
        return accepted

    def changed(self) -> dict[str, Any]:
        """The fields whose values differ from their defaults, in the order of the declaration."""
        fields = type(self).model_fields
        return {name: value for name, value in self if value != fields[name].get_default(call_default_factory=True)}


@dataclass(frozen=True)
class Paper:
    """Where a method comes from; ``arxiv`` is empty where no identifier is known."""

    title: str
    arxiv: str = ""
    venue: str = ""


class Conversation(Protocol):
    """What a method that writes prompts of its own needs of the model's chat template (``policies.dialogue.Template``)."""

    @property
    def end_id(self) -> int:
        """The id that ends a response."""
        ...

    @property
    def answer_mark(self) -> tuple[int, ...]:
        """Ids that every prompt ends with: the start of the answer."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        ...

    def decode(self, ids: Any) -> str:
        """Text of ids, tags such as ``<action>`` kept."""
        ...

    def aside(self, user: str) -> list[int]:
        """Ids of one more message of the user and the start of its answer, after a prompt without its ``answer_mark``."""
        ...


class Generate(Protocol):
    """Responses of the rollout's weights to prompts of a method's own, unrestricted."""

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[tuple[str | int, ...]],
        *,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
    ) -> list[Response]:
        """One response per prompt, with the log-probs it was sampled with; the noise depends on its key, the seed and the step alone.

        Args:
            prompts: whole contexts; those of one episode one after another, so that what they share is computed once.
            keys: one per prompt, none twice.
            temperature: of sampling, 0 for the likeliest token; None: the rollout's.
            max_new_tokens: tokens that a response may take; None: the rollout's.
        """
        ...


@dataclass(frozen=True)
class Tools:
    """What a method may ask of the trainer. Engines that a run does not offer are None.

    ``rng``       generator derived from (run seed, step): draws are the same after a resume.
    ``score``     (prompt_ids, response_ids) pairs to log-probs of the response, by the rollout's weights.
    ``logprobs``  rows to log-probs of their sampled tokens (float32 [N], 0 elsewhere) by the rollout's weights, as they were
                  sampled: tempered, and over the allowed ids. Rows may continue others, whose contexts go through once.
    ``generate``  prompts, one key each, to sampled responses (:class:`Generate`).
    ``analyse``   questions in words to answers in words, by the run's analyser (``method.analyser``), which is not trained.
    ``embed``     texts to their embeddings by a frozen sentence encoder, float [n, D] of length 1.
    ``expert``    task id to the expert's episode (its results carry the state keys), for oracle and demo graphs.
    ``max_turns`` the environment's turn budget (ProAS's distance cap).
    ``template``  the model's chat template, for prompts of the method's own (CoPE's forecasts).
    ``terse``     the model was told no format in words: neither should a prompt of the method's own (the tiny model).
    """

    step: int
    rng: np.random.Generator
    max_turns: int
    score: Callable[[Sequence[tuple[Sequence[int], Sequence[int]]]], list[np.ndarray]] | None = None
    logprobs: Callable[[Sequence[Row]], list[np.ndarray]] | None = None
    generate: Generate | None = None
    analyse: Callable[[Sequence[str]], list[str]] | None = None
    embed: Callable[[Sequence[str]], np.ndarray] | None = None
    expert: Callable[[str], ExpertEpisode | None] | None = None
    template: Conversation | None = None
    terse: bool = False


@dataclass(frozen=True)
class Credit:
    """What one episode's tokens are worth.

    ``advantage_TN``    policy-gradient advantage of each sampled token: one float64 array [n_t] per turn.
    ``ce_response_TN``  cross-entropy weights on sampled tokens, one float array [n_t] per turn, or None.
    ``ce_prompt_TN``    the same on prompt tokens (what the environment said), or None.
    """

    advantage_TN: tuple[np.ndarray, ...]
    ce_response_TN: tuple[np.ndarray, ...] | None = None
    ce_prompt_TN: tuple[np.ndarray, ...] | None = None


@dataclass
class Assignment:
    """A method's answer for one batch: ``credits[g][e]``, extra rows, and values to log."""

    credits: list[list[Credit]]
    extra_rows: list[Row] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


def without_credit(groups: Sequence[Group]) -> Assignment:
    """An assignment in which no token is worth anything: what to build rows of episodes from, as context."""
    return Assignment(
        [[Credit(tuple(np.zeros(turn.n_tokens) for turn in e.turns)) for e in group.episodes] for group in groups]
    )


class Method(Protocol):
    """What every method class declares about itself; it is made by ``cls(params)``.

    It may also have ``defaults``, full configuration keys with the values that belong to the method (``loss.clip_high`` of
    dapo): they stand above the environment's and the model's defaults and below everything that is given. And for
    ``methods check``: ``neutral``, parameters with which it is its base, ``conserves``, what it only moves, and ``trial``,
    parameters to be tried with, where the defaults leave out what is worth trying. ``asks_analyser`` is True where the
    parameters call for ``Tools.analyse``: a configuration without an analyser is then refused. ``clashes`` names methods that it
    does not compose with, each with the reason and the way out (:func:`agentcredit.methods.registry.clash`); one of the two
    declares it.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    Params: ClassVar[type[Params]]
    paper: ClassVar[Paper]
    summary: ClassVar[str]

    @property
    def params(self) -> Params:
        """The parameters it was made with."""
        ...

    def label(self) -> str:
        """The method with every choice that makes two runs of this name differ, for run names and tables."""
        ...


class Estimator(Method, Protocol):
    """From outcomes to one advantage per turn."""

    def advantages(self, groups: Sequence[Group], metrics: dict[str, float], penalty: float = 0.0) -> Advantages:
        """Advantages of every turn; ``metrics`` receives what is worth logging.

        ``penalty`` is subtracted from the score of every invalid turn *before* normalisation (docs/methods/grpo.md,
        ``before_norm``); it is 0 in the other modes.
        """
        ...

    def normalise(self, scores_N: np.ndarray) -> np.ndarray:
        """One group's scores (one per turn) to advantages on this estimator's own scale, float64 [N].

        The composition uses it for the residual of invalid actions, so that both parts are in one unit.
        """
        ...


class Shaper(Method, Protocol):
    """From advantages to advantages."""

    def shape(
        self, groups: Sequence[Group], advantages: Advantages, tools: Tools, metrics: dict[str, float]
    ) -> Advantages:
        """The shaped advantages, same shapes; the arrays given are not changed."""
        ...


class Refiner(Method, Protocol):
    """From advantages of turns to advantages of tokens."""

    def refine(
        self, groups: Sequence[Group], advantages: TokenAdvantages, tools: Tools, metrics: dict[str, float]
    ) -> TokenAdvantages:
        """The refined advantages, same shapes; the arrays given are not changed."""
        ...


class Auxiliary(Method, Protocol):
    """Cross-entropy weights and extra rows on top of the policy gradient."""

    def extend(self, groups: Sequence[Group], assignment: Assignment, tools: Tools) -> Assignment:
        """The assignment with this method's streams added."""
        ...


@runtime_checkable
class Selective(Protocol):
    """A method that trains on some groups only, and has others played in the place of the rest (dynamic sampling)."""

    @property
    def max_batches(self) -> int:
        """How often a step plays at most, the first time included."""
        ...

    def keeps(self, group: Group) -> bool:
        """Whether the group is to be trained on."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A method of any kind that remembers from step to step; checkpoints keep what it gives."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        ...
