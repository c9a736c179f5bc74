"""What an evaluation leaves: one outcome per episode, with everything needed to compare it fairly.

A file of outcomes is JSON lines: the header first, then one line per episode, in the order of (task, repeat). A header
carries what must be equal for two evaluations to stand in one table (panel, decoding, turn budget, ``comparison``) and
what makes them different on purpose (method, seed).

Failures of the agent stay in every denominator. Episodes that the harness ended (``episodes.HARNESS_FAILURES``) may be
listed, so that it is known which they were, and are never counted.

This module imports the standard library and its own package only.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from agentcredit.episodes import HARNESS_FAILURES, StopReason
from agentcredit.errors import MissingError
from agentcredit.files import atomic_write_text

OUTCOME_FORMAT = 1

Role = Literal["train", "dev", "test"]

BUDGET_SHARES = (0.25, 0.5, 1.0)
"""Shares of the turn budget within which successes are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalHeader:
    """What was evaluated, on what, and how.

    ``run``            name of the run's folder.
    ``env_version``, ``package``  the environment's own version, and the distribution it ran on (``alfworld 0.4.2``).
    ``data_source``    where the tasks come from; ``official`` is False for e.g. generated games.
    ``role``           what the split is for: selections are made on dev, test is scored once.
    ``step``           training step of the checkpoint; -1 is the warm start, or no training at all.
    ``panel_*``        name, SHA-256 and number of tasks of the panel; ``partial`` when only some of them were played.
    ``policy``         ``transformers``, ``random``, ``expert``, or another engine's name.
    ``temperature``    of sampling, 0 for greedy; ``own_temperature`` is False where it was asked for instead of the
                       run's ``eval.temperature``. ``repeats`` is the number of episodes per task.
    ``rerank``         how the action was chosen among several candidates; empty: the policy's only answer was played.
    ``method``         its name (``proas``); ``label`` adds every choice that tells two such runs apart.
    ``warm_start``     hash of the weights that training started from.
    ``fingerprint``    hash of the run's configuration; ``comparison`` the same without method and seed: evaluations
                       may be put side by side when it is equal.
    ``harness_failures``  episodes that the harness ended, after their retries; not part of any rate.
    """

    run: str
    env: str
    env_version: str
    package: str
    data_source: str
    official: bool
    split: str
    role: Role
    step: int
    panel_name: str
    panel_sha256: str
    panel_size: int
    partial: bool = False
    policy: str = "transformers"
    temperature: float = 1.0
    own_temperature: bool = True
    repeats: int = 1
    rerank: str = ""
    max_turns: int
    method: str
    label: str
    base: str = ""
    model: str
    seed: int
    warm_start: str = ""
    fingerprint: str = ""
    comparison: str = ""
    harness_failures: int = 0
    format: int = OUTCOME_FORMAT


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one episode of one task ended.

    ``score`` is the environment's own score in 0..1; ``tokens`` counts sampled tokens, ``env_steps`` actions that
    the simulator or its cache answered.
    """

    task_id: str
    task_type: str
    repeat: int
    success: bool
    score: float
    turns: int
    stop_reason: StopReason
    tokens: int = 0
    env_steps: int = 0

    @property
    def counted(self) -> bool:
        """Whether the episode belongs into a rate's denominator."""
        return self.stop_reason not in HARNESS_FAILURES


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A header and its outcomes, as one file holds them."""

    header: EvalHeader
    outcomes: tuple[Outcome, ...]
    path: Path | None = field(default=None, compare=False)

    @property
    def counted(self) -> tuple[Outcome, ...]:
        """The outcomes that rates are made of."""
        return tuple(outcome for outcome in self.outcomes if outcome.counted)

    @property
    def harness_failures(self) -> int:
        """Episodes that the harness ended: the header's number, or those listed where these are more."""
        return max(self.header.harness_failures, len(self.outcomes) - len(self.counted))


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts over the counted outcomes of one evaluation, or of one task type in it.

    ``mean_score`` and ``mean_turns`` (of successes) are None where there is nothing to average. ``within`` maps a
    share of the turn budget to the number of successes that needed no more turns than that.
    """

    n: int
    k: int
    mean_score: float | None
    mean_turns: float | None
    within: dict[float, int]
    stop_reasons: dict[str, int]
    harness_failures: int
    tokens: int
    env_steps: int

    @property
    def rate(self) -> float | None:
        """Success rate k/n, or None when nothing was counted."""
        return self.k / self.n if self.n else None


def summarise(outcomes: Iterable[Outcome], max_turns: int) -> Summary:
    """Counts successes, turns and stop reasons; outcomes that the harness ended are counted apart."""
    listed = list(outcomes)
    counted = [outcome for outcome in listed if outcome.counted]
    turns_of_successes = [outcome.turns for outcome in counted if outcome.success]
    reasons = Counter(outcome.stop_reason.value for outcome in listed)
    return Summary(
        n=len(counted),
        k=len(turns_of_successes),
        mean_score=sum(outcome.score for outcome in counted) / len(counted) if counted else None,
        mean_turns=sum(turns_of_successes) / len(turns_of_successes) if turns_of_successes else None,
        within={share: sum(turns <= share * max_turns for turns in turns_of_successes) for share in BUDGET_SHARES},
        stop_reasons=dict(sorted(reasons.items())),
        harness_failures=len(listed) - len(counted),
        tokens=sum(outcome.tokens for outcome in counted),
        env_steps=sum(outcome.env_steps for outcome in counted),
    )


def by_type(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes of each task type, sorted by its name."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.task_type, []).append(outcome)
    return dict(sorted(groups.items()))


def write(path: Path, header: EvalHeader, outcomes: Sequence[Outcome]) -> None:
    """Writes header and outcomes as JSON lines, all or nothing, sorted by (task, repeat).

    Raises:
        ValueError: the same (task, repeat) is listed twice; a rate of such a file would count it double.
    """
    ordered = sorted(outcomes, key=lambda outcome: (outcome.task_id, outcome.repeat))
    for earlier, later in pairwise(ordered):
        if (earlier.task_id, earlier.repeat) == (later.task_id, later.repeat):
            raise ValueError(f"task {later.task_id!r}, repeat {later.repeat} is listed twice")
    lines = [json.dumps(dataclasses.asdict(item), ensure_ascii=False) for item in (header, *ordered)]
    atomic_write_text(path, "\n".join(lines) + "\n")


def read(path: Path) -> Evaluation:
    """Inverse of :func:`write`.

    Raises:
        MissingError: the file cannot be read, or is not a whole file of outcomes of this format.
    """
    try:
        # Not splitlines(): it also splits at characters that JSON leaves as they are.
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise MissingError(f"Evaluation {path} cannot be read ({error}); run `agentcredit eval` again.") from error
    if not lines[0]:
        raise MissingError(f"Evaluation {path} is empty; run `agentcredit eval` again.")
    try:
        header = _header(json.loads(lines[0]))
        outcomes = tuple(_outcome(json.loads(line)) for line in lines[1:])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MissingError(
            f"Evaluation {path} is not a file of outcomes in format {OUTCOME_FORMAT} ({error}); "
            "run `agentcredit eval` again."
        ) from error
    return Evaluation(header, outcomes, path)


def _header(record: Mapping[str, Any]) -> EvalHeader:
    if record.get("format") != OUTCOME_FORMAT:
        raise ValueError(f"its header says format {record.get('format')!r}")
    return EvalHeader(**record)


def _outcome(record: Mapping[str, Any]) -> Outcome:
    return Outcome(**{**record, "stop_reason": StopReason(record["stop_reason"])})
