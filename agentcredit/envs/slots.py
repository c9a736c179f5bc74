"""What the pool moves about: slots, the episodes that want them, and the calls that wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from agentcredit.envs.base import EnvFailure, StepResult
from agentcredit.envs.process import RemoteError, WorkerProcess
from agentcredit.envs.trail import Trail


@dataclass(eq=False)
class Slot:
    """An environment object in a worker: what it holds, whose it is, and when it last worked."""

    process: int
    instance: int
    held: Trail | None = None
    owner: Track | None = None
    busy: bool = False
    used: int = 0

    def place_of(self, track: Track | None) -> int:
        """How many of the track's actions are done here already; -1 when this slot is not on its way."""
        place = self.held.place_in(track.trail) if self.held is not None and track is not None else None
        return -1 if place is None else place


@dataclass(eq=False)
class Track:
    """An episode as the pool knows it. Its trail is written by the episode alone, between its calls."""

    trail: Trail
    slot: Slot | None = None
    calls: int = 0
    closed: bool = False
    lost: bool = False


@dataclass(eq=False)
class Job:
    """One call: ``work`` runs in a process's thread on the slot that it was given.

    ``names`` is the task or split that it asks for; a KeyError about it is the caller's mistake, not the worker's.
    """

    work: Callable[[WorkerProcess, Slot], Any]
    track: Track | None = None
    names: str = ""
    future: Future[Any] = field(default_factory=Future)
    failures: int = 0

    def asked_for_unknown(self, error: Exception) -> bool:
        """Whether the environment says that there is no such task or split; asking again does not help."""
        about = isinstance(error, RemoteError) and error.type_name == "KeyError" and self.names
        return bool(about) and self.names in str(error)


def check_same(result: StepResult, trail: Trail, index: int) -> None:
    """A replay must give what the trail says. Raises EnvFailure when the environment is not deterministic after all."""
    seen = trail.results[index]
    if (result.observation, result.done, result.full_state) != (seen.observation, seen.done, seen.full_state):
        action = f"after {trail.actions[index - 1]!r} ({index} of {len(trail.actions)})" if index else "at the reset"
        raise EnvFailure(
            "env_error",
            f"task {trail.task_id!r}: replayed {action}, the environment answered otherwise than before, so it is not "
            "deterministic as it declares",
            f"before: {seen}\nnow: {result}",
        )
