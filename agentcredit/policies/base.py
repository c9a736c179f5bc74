"""The seam of a policy: contexts of token ids in, sampled ids with log-probabilities out.

The rollout is event-driven: it submits what is ready and collects what is done, so an episode that waits for its
environment never holds up the others. A *lockstep* policy asks to be given all live episodes at once, which makes its
batches, and so its floating-point results, reproducible bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from agentcredit.envs.base import StepResult


@dataclass(frozen=True)
class Request:
    """One response to sample.

    ``session``     the episode; a policy may keep its key-value cache between the turns of a session.
    ``context_ids`` the whole context; it starts with the session's previous context and response when the layout is
                    append-only, and the policy then feeds only what is new.
    ``noise_key``   what the sampling noise is drawn from: (run seed, step, task, sibling, turn). A sample depends on it
                    and on the context alone, never on who else is in the batch or on a resume.
    ``temperature`` 0 takes the likeliest token. There is no top-p or top-k: truncated sampling would need its kept mass
                    in the learner as well.
    ``actions``     admissible actions to restrict the action's tokens to, or None for free sampling.
    """

    session: str
    context_ids: Sequence[int]
    noise_key: tuple[str | int, ...]
    max_new_tokens: int
    temperature: float = 1.0
    actions: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Response:
    """What was sampled for a request.

    ``ids`` ends with an end mark unless ``finished`` is False (the token budget ran out). ``logprobs`` is float32 [n]:
    under the distribution that was sampled from (temperature applied, restricted where ``allowed`` has ids; 0 when greedy).
    """

    session: str
    ids: tuple[int, ...]
    logprobs: np.ndarray
    finished: bool
    allowed: tuple[tuple[int, ...] | None, ...] | None = None


class Policy(Protocol):
    """Samples responses. Implementations: ``transformers``; vllm and openai come beside it."""

    name: str
    lockstep: bool
    """True: collect() is to be called only when every live episode has submitted."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queues requests; at most one per session at a time."""
        ...

    def collect(self) -> list[Response]:
        """Responses of at least one queued request (a lockstep policy: of all), in the order of submission."""
        ...

    def release(self, session: str) -> None:
        """The session is over; its cache may go."""
        ...

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float = 1.0) -> list[np.ndarray]:
        """Log-probabilities float32 [n] of each given response after its prompt."""
        ...


class TextPolicy(Protocol):
    """Policies without tokens: ``random``, ``expert``, ``replay``."""

    name: str

    def act(self, task_id: str, turn: int, seen: StepResult, noise_key: tuple[str | int, ...]) -> tuple[str, str]:
        """The (thought, action) for turn ``turn`` (from 0) of the task, having seen ``seen``."""
        ...
