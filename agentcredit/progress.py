"""How a long command says where it is; the loop talks to this seam and knows no terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepReport:
    """One training step.

    ``reward`` and ``success`` are means over the step's episodes, ``no_signal`` the share of groups whose episodes all
    had one return, ``cache_hits`` the share of environment steps that the transition cache answered.
    """

    step: int
    steps: int
    reward: float
    success: float
    no_signal: float
    tokens_per_second: float
    cache_hits: float | None = None
    harness_failures: int = 0


class Progress(Protocol):
    """Receives what happens. Every call returns quickly and never fails."""

    def phase(self, text: str, done: int = 0, total: int = 0) -> None:
        """What is going on, in a few words, and how far it is (total 0: unknown)."""
        ...

    def step(self, report: StepReport) -> None:
        """A training step is done."""
        ...

    def evaluated(self, split: str, step: int, successes: int, episodes: int) -> None:
        """An evaluation is done."""
        ...

    def close(self) -> None:
        """Nothing more comes; safe to call twice."""
        ...


class Silent:
    """Says nothing: for tests and for callers without a terminal."""

    def phase(self, text: str, done: int = 0, total: int = 0) -> None:
        """Nothing."""

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def evaluated(self, split: str, step: int, successes: int, episodes: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
