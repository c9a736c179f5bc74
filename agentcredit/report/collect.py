"""Which evaluations a report is made of: found below the runs' folder, one checkpoint a run, one role or split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcredit import outcomes
from agentcredit.errors import MissingError, UsageError, nearest
from agentcredit.outcomes import EvalHeader, Evaluation
from agentcredit.rundir import RunDir

ROLES = ("test", "dev", "train")
"""Roles of splits, the most telling first."""

TEXT_POLICIES = frozenset({"random", "expert"})
"""Policies without weights: reference rows."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen, and sentences about what was not."""

    evaluations: tuple[Evaluation, ...]
    notes: tuple[str, ...]


def collect(out: Path, runs: Sequence[str] = ()) -> list[Evaluation]:
    """Reads ``<out>/*/eval/*.jsonl``, or those of the named runs only.

    Args:
        out: folder of the runs.
        runs: names below ``out``, their beginnings, ``latest``, or paths of runs' folders.

    Raises:
        UsageError: a named run does not exist, or its name is ambiguous.
        MissingError: there is no evaluation at all, or a file of one is broken.
    """
    folders = [RunDir.find(out, run).path for run in runs] or sorted(path.parent for path in out.glob("*/eval"))
    files = [file for folder in dict.fromkeys(folders) for file in sorted((folder / "eval").glob("*.jsonl"))]
    if not files:
        where = f"the runs named ({', '.join(runs)})" if runs else f"{out}/*/eval"
        below = sorted({path.parents[2] for path in out.glob("*/*/eval/*.jsonl")})  # the demo's, or a comparison's
        other = f"--out {below[0]}, which has some" if below and not runs else "--out"
        raise MissingError(
            f"There are no evaluations in {where}: train with `agentcredit train`, evaluate with "
            f"`agentcredit eval RUN --split test`, or name another folder with {other}."
        )
    return [outcomes.read(file) for file in files]


def select(evaluations: Sequence[Evaluation], split: str = "", temperature: float | None = None) -> Selection:
    """Keeps one role or split, one decoding, and of each run its last checkpoint (and its warm start, step -1).

    Args:
        evaluations: everything that was found.
        split: a split's name or a role; empty: for each environment test where any run has it, else dev, else train.
            Where a split was played whole, and in part too (as training does with dev), only the whole is kept.
        temperature: keeps evaluations of models that were sampled at it. None: those at the runs' own
            ``eval.temperature``; a split that has no such evaluation keeps what it has.

    Raises:
        UsageError: no evaluation has this split or role, or this temperature.
    """
    if split:
        kept = [e for e in evaluations if split in (e.header.split, e.header.role)]
        if not kept:
            known = {e.header.split for e in evaluations} | {e.header.role for e in evaluations}
            raise UsageError(f"No evaluation is on split '{split}' (--split).{nearest(split, known)}")
        notes: list[str] = []
    else:
        kept, notes = _default_role(evaluations)
    kept, of_decoding = _one_decoding(kept, temperature)
    kept, of_panels = _largest_panel(kept)
    last: dict[tuple[str, str, str, str, bool, float, str], Evaluation] = {}
    for evaluation in sorted(kept, key=lambda e: e.header.step):
        header = evaluation.header
        # With the temperature, so that two of them meet in the comparison, which refuses them, and not here.
        place = (header.run, header.env, header.split, header.policy, is_warm_start(header), header.temperature)
        last[*place, header.rerank] = evaluation
    return Selection(tuple(sorted(last.values(), key=_order)), (*notes, *of_decoding, *of_panels))


def is_warm_start(header: EvalHeader) -> bool:
    """Whether the weights are those that training starts from."""
    return header.step < 0 and header.policy not in TEXT_POLICIES


def is_method(header: EvalHeader) -> bool:
    """Whether a method trained the weights; else they are the warm start's, or there are none."""
    return header.step >= 0 and header.policy not in TEXT_POLICIES


def _default_role(evaluations: Sequence[Evaluation]) -> tuple[list[Evaluation], list[str]]:
    kept: list[Evaluation] = []
    notes: list[str] = []
    for env in sorted({e.header.env for e in evaluations}):
        of_env = [e for e in evaluations if e.header.env == env]
        role = next(role for role in ROLES if any(e.header.role == role for e in of_env))
        kept += [e for e in of_env if e.header.role == role]
        without = _runs(of_env) - _runs(kept)
        if without:
            notes.append(f"{env}: without a {role} evaluation, so not shown: {', '.join(sorted(without))}.")
        if role != "test":
            notes.append(
                f"{env}: no test evaluation yet, so these are {role} results; `agentcredit eval RUN` adds test."
            )
    return kept, notes


def _one_decoding(evaluations: Sequence[Evaluation], temperature: float | None) -> tuple[list[Evaluation], list[str]]:
    """Evaluations at ``temperature``, or at the runs' own; reference policies have none and always stay."""
    sampled = [e for e in evaluations if e.header.policy not in TEXT_POLICIES]
    if temperature is not None:
        if sampled and all(e.header.temperature != temperature for e in sampled):
            known = ", ".join(f"{value:g}" for value in sorted({e.header.temperature for e in sampled}))
            raise UsageError(
                f"No evaluation was sampled at temperature {temperature:g} (--temperature). There are: {known}."
            )
        return [e for e in evaluations if e.header.policy in TEXT_POLICIES or e.header.temperature == temperature], []
    with_own = {(e.header.env, e.header.split) for e in sampled if e.header.own_temperature}
    kept, notes = [], []
    others: dict[tuple[str, str], set[float]] = {}
    for e in evaluations:
        place = (e.header.env, e.header.split)
        if e.header.own_temperature or place not in with_own:
            kept.append(e)
        else:
            others.setdefault(place, set()).add(e.header.temperature)
    for (env, split), temperatures in sorted(others.items()):
        listed = ", ".join(f"{value:g}" for value in sorted(temperatures))
        notes.append(
            f"{env} {split}: also evaluated at other temperatures than the runs' own ({listed}), not shown; "
            "--temperature shows one of them."
        )
    return kept, notes


def _largest_panel(evaluations: Sequence[Evaluation]) -> tuple[list[Evaluation], list[str]]:
    """Of the panels of a split, the whole one, or the largest part; panels of equal size are left to be refused."""
    sizes: dict[tuple[str, str], tuple[bool, int]] = {}
    for header in (e.header for e in evaluations):
        place = (header.env, header.split)
        sizes[place] = max(sizes.get(place, (False, 0)), _panel_size(header))
    kept = [e for e in evaluations if _panel_size(e.header) == sizes[e.header.env, e.header.split]]
    notes: list[str] = []
    for env, split in sorted(sizes):
        here = [e for e in evaluations if (e.header.env, e.header.split) == (env, split)]
        without = _runs(here) - _runs(e for e in kept if (e.header.env, e.header.split) == (env, split))
        if without:
            whole, size = sizes[env, split]
            panel = "the whole panel" if whole else f"the largest panel ({size} tasks)"
            notes.append(f"{env} {split}: not evaluated on {panel}, so not shown: {', '.join(sorted(without))}.")
    return kept, notes


def _panel_size(header: EvalHeader) -> tuple[bool, int]:
    return (not header.partial, header.panel_size)


def _runs(evaluations: Iterable[Evaluation]) -> set[str]:
    return {e.header.run for e in evaluations}


def _order(evaluation: Evaluation) -> tuple[str, str, str, str, int, int, str]:
    header = evaluation.header
    return (header.env, header.split, header.model, header.label, header.seed, header.step, header.run)
