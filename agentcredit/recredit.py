"""Credit for stored episodes: any method applied to what a run has played, beside the credit that it trained on.

Nothing is played or trained. A method with a state (ProAS's graphs) goes through the stored steps in their order, so that it
knows at each step what it would have known.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentcredit import __version__
from agentcredit.episodes import Episode, Group, episode_from_json, grouped
from agentcredit.errors import UsageError
from agentcredit.files import read_zst_jsonl, write_zst_jsonl
from agentcredit.methods.base import Assignment, Credit
from agentcredit.methods.compose import Composition
from agentcredit.offline import Offline, stored_steps
from agentcredit.rundir import RunDir

CREDIT_FORMAT = 1
SLACK = 1e-9
"""Advantages that differ by less are equal: sums in another order."""


@dataclass(frozen=True)
class Recredited:
    """One stored episode under another method.

    ``original_T`` is the advantage that the run trained on, the mean over each turn's tokens, float64 [T]; ``credit`` the
    method's, by token.
    """

    step: int
    episode: Episode
    original_T: np.ndarray
    credit: Credit

    @property
    def id(self) -> str:
        """Step, task and sibling, e.g. ``3/pick-0001/2``."""
        return episode_id(self.step, self.episode)

    @property
    def advantage_T(self) -> np.ndarray:
        """The method's advantage, the mean over each turn's tokens, float64 [T]."""
        return np.array([float(a_N.mean()) if len(a_N) else 0.0 for a_N in self.credit.advantage_TN])


@dataclass
class Step:
    """One step's episodes under the method, what the method logged, and which weights it asked (empty: none)."""

    step: int
    episodes: list[Recredited]
    metrics: dict[str, float]
    weights: str = ""
    extra_rows: int = 0


@dataclass
class Totals:
    """Both credits over all turns, in order, for a summary."""

    episodes: int = 0
    original: list[np.ndarray] = field(default_factory=list)
    advantage: list[np.ndarray] = field(default_factory=list)
    logged: dict[str, list[float]] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Takes a step in."""
        for name, value in step.metrics.items():
            self.logged.setdefault(name, []).append(value)
        for one in step.episodes:
            self.episodes += 1
            self.original.append(one.original_T)
            self.advantage.append(one.advantage_T)

    def metrics(self) -> dict[str, float]:
        """What the method logged, the mean over the steps that have it; without what the clock measured."""
        return {k: float(np.mean(values)) for k, values in self.logged.items() if not k.endswith("seconds")}

    def summary(self) -> dict[str, float]:
        """Counts, sizes, and how the two credits agree over turns; a share of nothing is left out."""
        old, new = (np.concatenate(parts) if parts else np.zeros(0) for parts in (self.original, self.advantage))
        values = {"episodes": float(self.episodes), "turns": float(len(old))}
        if not len(old):
            return values
        values |= {
            "abs_advantage_original": float(np.abs(old).mean()),
            "abs_advantage": float(np.abs(new).mean()),
            "share_equal": float(np.mean(np.abs(old - new) <= SLACK)),
            "share_silenced": float(np.mean((np.abs(old) > SLACK) & (np.abs(new) <= SLACK))),
            "share_turned": float(np.mean((old * new < 0) & (np.abs(old) > SLACK) & (np.abs(new) > SLACK))),
        }
        if np.ptp(old) > SLACK and np.ptp(new) > SLACK:
            values["correlation"] = float(np.corrcoef(old, new)[0, 1])
        return values


def recredit(run: RunDir, method: Composition, offline: Offline, only: int | None = None) -> Iterator[Step]:
    """The run's stored steps under a method, in order; with ``only`` that step alone, the ones before it for the state.

    Raises:
        MissingError: no stored episodes, or no weights or environment where the method asks for them.
        UsageError: ``only`` has no stored episodes.
    """
    steps = list(stored_steps(run))
    if only is not None and only not in steps:
        raise UsageError(f"Run {run.name} has no stored episodes of step {only} (--step); it has {_ranges(steps)}.")
    for step in steps:
        if only is not None and (step > only or (step < only and not method.state_dict())):
            continue
        records = list(run.read_episodes(step))
        groups = grouped(episode_from_json(record) for record in records)
        assignment = method.credit(groups, offline.tools(step))
        if only in (None, step):
            yield Step(
                step,
                list(_episodes(step, groups, records, assignment)),
                assignment.metrics,
                offline.weights_of.get(step, ""),
                len(assignment.extra_rows),
            )


def episode_id(step: int, episode: Episode) -> str:
    """What an episode is called: step, task and sibling."""
    return f"{step}/{episode.task.id}/{episode.sibling}"


def find_episode(run: RunDir, name: str) -> tuple[int, str]:
    """Step and id of the stored episode that an id, or an unambiguous beginning of one, names.

    Raises:
        MissingError: no stored episodes.
        UsageError: none or several go by that name.
    """
    wanted_step = name.partition("/")[0]
    known = [
        (step, episode_id(step, episode_from_json(record)))
        for step in stored_steps(run)
        if not wanted_step.isdigit() or str(step) == wanted_step
        for record in run.read_episodes(step)
    ]
    found = [(step, each) for step, each in known if each == name] or [
        (step, each) for step, each in known if each.startswith(name)
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        steps = _ranges(list(stored_steps(run)))
        raise UsageError(
            f"Run {run.name} has no stored episode '{name}' (--episode STEP/TASK/SIBLING; steps {steps})."
            f"{_closest(name, [each for _, each in known])}"
        )
    shown = ", ".join(each for _, each in found[:3])
    raise UsageError(f"'{name}' (--episode) is the beginning of {len(found)} episodes: {shown}, …; write more of it.")


def credit_path(run: RunDir, method: Composition) -> Path:
    """Where the run keeps the credit of a method with these parameters."""
    name = "+".join(part.name for part in method.parts())
    digest = hashlib.sha256(method.label().encode()).hexdigest()[:8]
    return run.path / "credit" / f"{name}-{digest}.jsonl.zst"


def store(path: Path, run: RunDir, method: Composition, steps: Iterable[Step]) -> Totals:
    """Writes all steps, atomically; docs/credit.md describes the records."""
    totals = Totals()

    def records() -> Iterator[dict[str, Any]]:
        yield {
            "format": CREDIT_FORMAT,
            "kind": "header",
            "run": run.name,
            "fingerprint": run.config.fingerprint(),
            "label": method.label(),
            "original": run.config.method.model_dump(mode="json"),  # no label: a plug-in's class may be gone
            "agentcredit": __version__,
        }
        for step in steps:
            totals.add(step)
            yield {
                "kind": "step",
                "step": step.step,
                "weights": step.weights,
                "extra_rows": step.extra_rows,
                "metrics": step.metrics,
            }
            for one in step.episodes:
                yield to_json(one)

    write_zst_jsonl(path, records())
    return totals


def to_json(one: Recredited) -> dict[str, Any]:
    """One episode's record: credit by turn and by token beside the original's by turn."""
    credit = one.credit
    record: dict[str, Any] = {
        "kind": "episode",
        "id": one.id,
        "step": one.step,
        "task": one.episode.task.id,
        "sibling": one.episode.sibling,
        "success": one.episode.success,
        "original_T": one.original_T.tolist(),
        "advantage_T": one.advantage_T.tolist(),
        "advantage_TN": [a_N.tolist() for a_N in credit.advantage_TN],
    }
    for name in ("ce_response_TN", "ce_prompt_TN"):
        stream = getattr(credit, name)
        if stream is not None:
            record[name] = [w_N.tolist() for w_N in stream]
    return record


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a stored credit.

    Raises:
        MissingError: no such file, or it is damaged.
    """
    return read_zst_jsonl(path)


def _episodes(
    step: int, groups: Sequence[Group], records: Sequence[Mapping[str, Any]], assignment: Assignment
) -> Iterator[Recredited]:
    originals = iter(records)
    for group, credits in zip(groups, assignment.credits, strict=True):
        for episode, credit in zip(group.episodes, credits, strict=True):
            original_T = np.asarray(next(originals).get("advantage_T", []), dtype=np.float64)
            yield Recredited(step, episode, original_T, credit)


def _closest(name: str, known: Sequence[str]) -> str:
    """The three names nearest to one: a run has thousands."""
    found = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
    return f" Nearest: {', '.join(found)}." if found else ""


def _ranges(steps: Sequence[int]) -> str:
    if len(steps) == steps[-1] - steps[0] + 1 and len(steps) > 1:
        return f"{steps[0]} to {steps[-1]}"
    return ", ".join(map(str, steps))
