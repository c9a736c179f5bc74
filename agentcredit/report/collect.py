"""Which evaluations a report is made of: found below the runs' folder, one checkpoint a run, one role or split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcredit import outcomes
from agentcredit.errors import MissingError, UsageError, nearest
from agentcredit.outcomes import EvalHeader, Evaluation

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
        runs: names below ``out``, or paths of runs' folders.

    Raises:
        UsageError: a named run does not exist.
        MissingError: there is no evaluation at all, or a file of one is broken.
    """
    folders = [_folder(out, run) for run in runs] or sorted(path.parent for path in out.glob("*/eval"))
    files = [file for folder in dict.fromkeys(folders) for file in sorted((folder / "eval").glob("*.jsonl"))]
    if not files:
        where = f"the runs named ({', '.join(runs)})" if runs else f"{out}/*/eval"
        raise MissingError(
            f"There are no evaluations in {where}: train with `agentcredit train`, evaluate with "
            "`agentcredit eval RUN --split test`, or name another folder with --out."
        )
    return [outcomes.read(file) for file in files]


def select(evaluations: Sequence[Evaluation], split: str = "") -> Selection:
    """Keeps one role or split, and of each run its last checkpoint (and its warm start, step -1).

    Args:
        evaluations: everything that was found.
        split: a split's name or a role; empty: for each environment test where any run has it, else dev, else train.

    Raises:
        UsageError: no evaluation has this split or role.
    """
    if split:
        kept = [e for e in evaluations if split in (e.header.split, e.header.role)]
        if not kept:
            known = {e.header.split for e in evaluations} | {e.header.role for e in evaluations}
            raise UsageError(f"No evaluation is on split '{split}' (--split).{nearest(split, known)}")
        notes: list[str] = []
    else:
        kept, notes = _default_role(evaluations)
    last: dict[tuple[str, str, str, str, bool], Evaluation] = {}
    for evaluation in sorted(kept, key=lambda e: e.header.step):
        header = evaluation.header
        last[(header.run, header.env, header.split, header.policy, is_warm_start(header))] = evaluation
    return Selection(tuple(sorted(last.values(), key=_order)), tuple(notes))


def is_warm_start(header: EvalHeader) -> bool:
    """Whether the weights are those that training starts from."""
    return header.step < 0 and header.policy not in TEXT_POLICIES


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


def _runs(evaluations: Iterable[Evaluation]) -> set[str]:
    return {e.header.run for e in evaluations}


def _order(evaluation: Evaluation) -> tuple[str, str, str, str, int, int, str]:
    header = evaluation.header
    return (header.env, header.split, header.model, header.label, header.seed, header.step, header.run)


def _folder(out: Path, run: str) -> Path:
    for folder in (out / run, Path(run)):
        if folder.is_dir():
            return folder
    known = [path.name for path in out.glob("*/") if path.is_dir()]
    hint = nearest(run, known) if known else f" {out} holds no runs."
    raise UsageError(f"There is no run '{run}' below {out} (--out).{hint}")
