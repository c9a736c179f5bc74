"""The seam of an environment: what runs in the worker, and what the rest of the program sees of it.

The worker's interpreter has the environment's package and nothing of ours but the standard library, so this module and
everything under ``agentcredit/envs/`` that a worker loads must import with the standard library alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class EnvSpec:
    """What an environment declares about itself.

    ``deterministic``  the same task, seed and actions give the same results (verified by ``envs check``).
    ``markov``         observation, admissible actions and end are a function of the full state and the action, so that
                       transitions may be cached by (game hash, full state, action).
    ``package``        distribution name and version that the environment runs on, e.g. ``alfworld 0.4.2``.
    ``data_source``    where the tasks come from, printed with every result, e.g. ``generated games (small, v1)``.
    ``instances_per_process`` how many live episodes one worker process may hold.
    ``instructions``   the system text: role, action grammar, answer format is added by the policy's side.
    """

    name: str
    version: str
    package: str
    deterministic: bool
    markov: bool
    default_max_turns: int
    default_layout: Literal["dialogue", "window"]
    instructions: str
    success_rule: str
    splits: dict[str, int]
    data_source: str
    official: bool
    instances_per_process: int = 1
    task_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskInfo:
    """One task as the worker lists it; the client turns it into ``episodes.Task``.

    ``secrets``: gold answers, where the task has a literal one; no prompt may quote them.
    """

    id: str
    type: str
    goal: str
    content_hash: str
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepResult:
    """What a reset or a step returns.

    ``reward``       change of the environment's own score by this step, in the score's unit (success environments: 0/1).
    ``score``        the score so far, relative to the reset's (ScienceWorld: 0..1; success environments: 0/1).
    ``valid``        False when the environment did not understand or could not do the action.
    ``admissible``   actions that would be understood now, sorted; None where the environment cannot list them.
    ``state_key``    abstract state for GiGPO and ProAS (docs/methods/proas.md), level 0; None when unknown.
    ``lifted_key``   the same, level 1: shared by all tasks of one type; None when unknown.
    ``full_state``   digest of the simulator's whole state; None where it cannot be had.
    """

    observation: str
    reward: float = 0.0
    done: bool = False
    score: float = 0.0
    success: bool = False
    valid: bool = True
    admissible: list[str] | None = None
    state_key: str | None = None
    lifted_key: str | None = None
    full_state: str | None = None


@dataclass(frozen=True)
class ExpertStep:
    """One step of an expert episode: the sub-goal in words, and the action."""

    thought: str
    action: str


@dataclass(frozen=True)
class ExpertEpisode:
    """An expert's whole way through one task, with what was seen, so that warm starts need no replay.

    ``results`` has one entry more than ``steps``: the reset's result first, then one per step.
    """

    task_id: str
    steps: list[ExpertStep] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)


class Environment(Protocol):
    """Runs in the worker. One object is one live episode slot; a worker process may hold several."""

    def spec(self) -> EnvSpec:
        """What the environment is."""
        ...

    def tasks(self, split: str) -> list[TaskInfo]:
        """All tasks of a split, sorted by id. Raises KeyError for an unknown split."""
        ...

    def reset(self, task_id: str, seed: int) -> StepResult:
        """Starts the task from its initial state. Raises KeyError for an unknown task."""
        ...

    def step(self, action: str) -> StepResult:
        """Plays one action."""
        ...

    def expert(self, task_id: str) -> ExpertEpisode | None:
        """The expert's episode, or None where there is no expert for the task."""
        ...

    def close(self) -> None:
        """Releases everything; the object is not used again."""
        ...


class EnvFailure(Exception):
    """The harness failed after its bounded retries: a worker died, hung or printed garbage.

    ``kind`` is ``"env_timeout"`` or ``"env_error"``; ``detail`` holds the worker's last traceback or stderr lines.
    """

    def __init__(self, kind: Literal["env_timeout", "env_error"], message: str, detail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.detail = detail


class EnvEpisode(Protocol):
    """A live episode as the rollout sees it. Futures raise :class:`EnvFailure` once retries are used up."""

    def reset(self) -> Future[StepResult]:
        """The initial state of the task."""
        ...

    def step(self, action: str) -> Future[StepResult]:
        """Plays one action; only after the previous future is done."""
        ...

    def close(self) -> None:
        """Gives its slot back; safe to call twice."""
        ...


class EnvClient(Protocol):
    """The parent's side of an environment: a pool of worker processes behind a transition cache."""

    def spec(self) -> EnvSpec:
        """What the environment is."""
        ...

    @property
    def capacity(self) -> int:
        """How many episodes can be live without replays; an environment that is not deterministic takes no more."""
        ...

    def tasks(self, split: str) -> list[TaskInfo]:
        """All tasks of a split, sorted by id. Raises ``UsageError`` for an unknown split."""
        ...

    def open(self, task_id: str, seed: int = 0) -> EnvEpisode:
        """A new episode; no I/O until its reset."""
        ...

    def experts(self, task_ids: Sequence[str]) -> list[ExpertEpisode | None]:
        """The expert's episodes of these tasks, in order; computed in parallel by the workers."""
        ...

    def stats(self) -> dict[str, float]:
        """Counters since the start: steps asked, steps simulated, cache hits, restarts, timeouts, failures."""
        ...

    def close(self) -> None:
        """Ends every worker process; safe to call twice."""
        ...


def to_plain(value: Any) -> Any:
    """A dataclass of this module as plain JSON values (the wire form of the worker's protocol)."""
    from dataclasses import asdict

    return asdict(value)
