"""The data of a rollout: Task, Turn, Episode, Group, and their versioned JSON form.

Ragged arrays carry a dimension suffix in their names: ``_G`` group, ``_E`` episode, ``_T`` turn, ``_N`` token.
This module imports the standard library and numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Any, Literal

import numpy as np

EPISODE_FORMAT = 1

Layout = Literal["dialogue", "window"]


class StopReason(StrEnum):
    """Why an episode ended. The last four are not the agent's doing or choice."""

    SUCCESS = "success"
    FAILURE = "failure"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    PARSE_ERRORS = "parse_errors"
    ENV_TIMEOUT = "env_timeout"
    ENV_ERROR = "env_error"
    CANCELLED = "cancelled"


HARNESS_FAILURES = frozenset({StopReason.ENV_TIMEOUT, StopReason.ENV_ERROR})
"""Failures of the harness: counted apart, never in a success rate's denominator, retried a bounded number of times."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an environment's split.

    ``type`` is the environment's own family name (ALFWorld: one of six; ScienceWorld: one of thirty).
    ``content_hash`` is the SHA-256 (first 16 hex digits) of what defines the task; panels are lists of (id, hash).
    ``secrets`` are gold answers that no hint may quote.
    """

    env: str
    split: str
    id: str
    type: str
    goal: str
    content_hash: str
    seed: int = 0
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision: what the policy was shown, what it sampled, and what the environment answered.

    ``prompt_ids``        new tokens since the previous turn's response (dialogue layout) or the whole prompt (window).
    ``response_ids``      the sampled tokens, end mark included; trained by id, never tokenised again.
    ``response_logprobs`` log-probability of each sampled token under the behaviour policy, float32 [n_tokens],
                          of the *restricted* distribution where ``allowed`` says that sampling was restricted.
    ``allowed``           per response token the sorted ids it was chosen from, or None for the whole vocabulary;
                          the tuple itself is None when no token of the turn was restricted.
    ``observation``       what was seen before acting; ``next_observation`` what the action led to.
    ``state_key``         abstract state before the action (docs/methods/proas.md, level 0), None when unknown; ``next_state_key``
                          after it. ``lifted_key`` and ``next_lifted_key`` are the same at level 1, shared by a task type.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_logprobs: np.ndarray
    action: str
    valid: bool
    observation: str
    next_observation: str
    reward: float = 0.0
    thought: str = ""
    state_key: str | None = None
    next_state_key: str | None = None
    lifted_key: str | None = None
    next_lifted_key: str | None = None
    allowed: tuple[tuple[int, ...] | None, ...] | None = None
    truncated_turns: int = 0

    @property
    def n_tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.response_ids)


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout of one task by one sibling of a group."""

    task: Task
    sibling: int
    layout: Layout
    turns: tuple[Turn, ...]
    score: float
    success: bool
    stop_reason: StopReason
    env_version: str = ""
    timing: Mapping[str, float] = field(default_factory=dict)

    @property
    def ret(self) -> float:
        """The episode's return R: the sum of its rewards (0/1 outcome in the sparse environments)."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def n_tokens(self) -> int:
        """Number of sampled tokens over all turns."""
        return sum(turn.n_tokens for turn in self.turns)

    @property
    def harness_failed(self) -> bool:
        """Whether the harness, not the agent, ended the episode."""
        return self.stop_reason in HARNESS_FAILURES


@dataclass(frozen=True, slots=True)
class Group:
    """The G siblings of one task from one initial state. Harness failures are already left out."""

    task: Task
    episodes: tuple[Episode, ...]


def grouped(episodes: Iterable[Episode]) -> list[Group]:
    """The groups of one step's episodes in which siblings stand together, as they are stored."""
    return [Group(task, tuple(members)) for task, members in groupby(episodes, key=lambda episode: episode.task)]


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """The episode as plain JSON values, with a format number."""
    return {
        "format": EPISODE_FORMAT,
        "task": {name: getattr(episode.task, name) for name in Task.__dataclass_fields__},
        "sibling": episode.sibling,
        "layout": episode.layout,
        "score": episode.score,
        "success": episode.success,
        "stop_reason": episode.stop_reason.value,
        "env_version": episode.env_version,
        "timing": dict(episode.timing),
        "turns": [_turn_to_json(turn) for turn in episode.turns],
    }


def episode_from_json(record: Mapping[str, Any]) -> Episode:
    """Inverse of :func:`episode_to_json`.

    Raises:
        ValueError: the record has another format number.
    """
    if record.get("format") != EPISODE_FORMAT:
        raise ValueError(f"episode format {record.get('format')!r} is not {EPISODE_FORMAT}")
    return Episode(
        task=Task(**{**record["task"], "secrets": tuple(record["task"].get("secrets", ()))}),
        sibling=record["sibling"],
        layout=record["layout"],
        turns=tuple(_turn_from_json(turn) for turn in record["turns"]),
        score=record["score"],
        success=record["success"],
        stop_reason=StopReason(record["stop_reason"]),
        env_version=record["env_version"],
        timing=record["timing"],
    )


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    record = {name: getattr(turn, name) for name in Turn.__dataclass_fields__}
    # A float32 survives the way through a Python float and its shortest repr exactly.
    record["response_logprobs"] = [float(value) for value in turn.response_logprobs]
    return record


def _turn_from_json(record: Mapping[str, Any]) -> Turn:
    values = dict(record)
    values["prompt_ids"] = tuple(values["prompt_ids"])
    values["response_ids"] = tuple(values["response_ids"])
    values["response_logprobs"] = np.asarray(values["response_logprobs"], dtype=np.float32)
    if values["allowed"] is not None:
        values["allowed"] = tuple(None if ids is None else tuple(ids) for ids in values["allowed"])
    return Turn(**values)
