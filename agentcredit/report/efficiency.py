"""Learning curves on dev, and how soon each method reaches a success rate: evaluations of a run's training, in order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentcredit.errors import MissingError, UsageError
from agentcredit.outcomes import Evaluation
from agentcredit.report.collect import TEXT_POLICIES
from agentcredit.report.compare import DEFAULT_BASELINE
from agentcredit.report.likeness import check_alike
from agentcredit.report.tables import NONE, Table
from agentcredit.rundir import RunDir
from agentcredit.stats.efficiency import SpeedUp, speed_up

Axis = Literal["steps", "episodes", "tokens", "seconds"]


@dataclass(frozen=True)
class Curve:
    """A method's dev curves: seeds [S], steps [K], their places on the axis [S, K], successes [S, K, T] of tasks [T]."""

    label: str
    method: str
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    x_SK: np.ndarray
    success_SKT: np.ndarray


@dataclass(frozen=True)
class Efficiency:
    """All curves, and per threshold and label the speed-up over the baseline (None for the baseline itself)."""

    env: str
    split: str
    model: str
    panel_size: int
    axis: Axis
    curves: tuple[Curve, ...]
    baseline: str
    speed_ups: Mapping[float, Mapping[str, SpeedUp]]
    notes: tuple[str, ...]


def efficiency(
    evaluations: Sequence[Evaluation],
    thresholds: Sequence[float],
    baseline: str = "",
    axis: Axis = "steps",
    stay: int = 2,
    window: int = 1,
) -> Efficiency:
    """Curves of all methods and their speed-ups over the baseline, on the seeds that both have.

    Args:
        evaluations: everything that was found; those of dev that training made at the run's own temperature are taken.
        thresholds: success rates, chosen before the results were looked at.
        baseline: method or label; empty: grpo.
        axis: training steps, or what the run had spent by then: episodes, tokens (sampled and trained), seconds.
        stay: evaluations in a row at or above the threshold.
        window: evaluations that a smoothed curve's point is the mean of.

    Raises:
        MissingError: no run has a curve.
        UsageError: several environments or models, or no such baseline.
        ComparisonRefused: curves that were not measured alike.
    """
    of_dev = [
        e
        for e in evaluations
        if e.header.role == "dev" and e.header.policy not in TEXT_POLICIES and e.header.own_temperature
    ]
    if not of_dev:
        raise MissingError("No run here has evaluations of dev: train with train.eval_every above 0.")
    places = sorted({(e.header.env, e.header.split, e.header.model) for e in of_dev})
    if len(places) > 1:
        raise UsageError(
            f"Curves of several environments or models cannot share a table ({'; '.join(' '.join(p) for p in places)}): "
            "name the runs to report."
        )
    check_alike(of_dev)
    notes: list[str] = []
    curves = _curves(of_dev, axis, notes)
    wanted = baseline or DEFAULT_BASELINE
    base = [curve for curve in curves if wanted in (curve.method, curve.label)]
    if len(base) != 1:
        what = "is ambiguous" if base else "has no curve here"
        raise UsageError(
            f"The baseline '{wanted}' {what} (--baseline); there are: {', '.join(c.label for c in curves)}."
        )
    found = {
        threshold: {
            curve.label: _against(curve, base[0], threshold, stay, window) for curve in curves if curve is not base[0]
        }
        for threshold in thresholds
    }
    header = of_dev[0].header
    return Efficiency(
        header.env,
        header.split,
        header.model,
        header.panel_size,
        axis,
        tuple(curves),
        base[0].label,
        found,
        tuple(notes),
    )


def tables(found: Efficiency, stay: int = 2, window: int = 1) -> list[Table]:
    """The curves in points, and one table per threshold."""
    steps = sorted({step for curve in found.curves for step in curve.steps})
    rows = tuple(
        (
            curve.label,
            ", ".join(map(str, curve.seeds)),
            *(
                f"{100 * float(np.nanmean(curve.success_SKT[:, curve.steps.index(step)])):.1f}"
                if step in curve.steps
                else NONE
                for step in steps
            ),
        )
        for curve in found.curves
    )
    title = f"{found.env} {found.split}, model {found.model}: success % by training step, mean of seeds"
    shown = [Table(title, ("Method", "Seeds", *map(str, steps)), rows, found.notes)]
    for threshold, speed_ups in found.speed_ups.items():
        shown.append(_threshold_table(found, threshold, speed_ups, stay, window))
    return shown


def _curves(evaluations: Sequence[Evaluation], axis: Axis, notes: list[str]) -> list[Curve]:
    runs: dict[str, dict[str, dict[int, Evaluation]]] = {}
    for evaluation in evaluations:
        header = evaluation.header
        runs.setdefault(header.label, {}).setdefault(header.run, {})[max(header.step, 0)] = evaluation
    curves: list[Curve] = []
    for label, by_run in sorted(runs.items()):
        by_seed = sorted((next(iter(points.values())).header.seed, run, points) for run, points in by_run.items())
        steps = sorted(set.intersection(*(set(points) for *_, points in by_seed)))
        longest = max(max(points) for *_, points in by_seed)
        if len(steps) < 2:
            notes.append(f"{label}: fewer than two evaluations that all of its seeds have, so no curve.")
            continue
        if steps[-1] < longest:
            notes.append(f"{label}: a seed has come to step {steps[-1]} only, so the curves of all of them end there.")
        tasks = sorted({o.task_id for *_, points in by_seed for step in steps for o in points[step].counted})
        success = np.array([[_row(points[step], tasks) for step in steps] for *_, points in by_seed])
        x = np.array([_axis(points, steps, axis) for *_, points in by_seed])
        header = next(iter(by_seed[0][2].values())).header
        curves.append(Curve(label, header.method, tuple(seed for seed, *_ in by_seed), tuple(steps), x, success))
    if not curves:
        raise MissingError("No run here has two evaluations of dev yet: train with train.eval_every above 0.")
    return curves


def _row(evaluation: Evaluation, tasks: Sequence[str]) -> list[float]:
    """Mean success of each task's episodes, NaN where none counts."""
    of_task: dict[str, list[bool]] = {}
    for outcome in evaluation.counted:
        of_task.setdefault(outcome.task_id, []).append(outcome.success)
    return [float(np.mean(of_task[task])) if task in of_task else math.nan for task in tasks]


def _axis(points: Mapping[int, Evaluation], steps: Sequence[int], axis: Axis) -> list[float]:
    if axis == "steps":
        return [float(step) for step in steps]
    path = points[steps[-1]].path
    if path is None:
        raise MissingError(
            f"Where the curve's run is kept is not known, so its {axis} are not either; use --axis steps."
        )
    spent = {record["step"]: record.get(f"total/{axis}", 0.0) for record in RunDir.load(path.parents[1]).metrics()}
    return [float(spent[step]) if step else 0.0 for step in steps]


def _against(curve: Curve, base: Curve, threshold: float, stay: int, window: int) -> SpeedUp:
    seeds = [seed for seed in curve.seeds if seed in base.seeds]
    if not seeds:
        raise UsageError(f"{curve.label} and {base.label} have no seed in common, so that they cannot be paired.")
    mine, theirs = ([c.seeds.index(seed) for seed in seeds] for c in (curve, base))
    end = min(len(curve.steps), len(base.steps))
    return speed_up(
        curve.success_SKT[mine, :end],
        base.success_SKT[theirs, :end],
        curve.x_SK[mine, :end],
        base.x_SK[theirs, :end],
        threshold,
        stay,
        window,
    )


def _threshold_table(
    found: Efficiency, threshold: float, speed_ups: Mapping[str, SpeedUp], stay: int, window: int
) -> Table:
    rows: list[tuple[str, ...]] = []
    for curve in found.curves:
        speed = speed_ups.get(curve.label)
        if speed is None:
            of_base = next(iter(speed_ups.values()), None)
            places, cells = (of_base.baseline_S if of_base else ()), (NONE, NONE, NONE)
        else:
            places = speed.reached_S
            ratio = f"× {speed.ratio:.2f}" if speed.ratio is not None else "not reached by both"
            cells = (ratio, f"[{speed.interval.low:.2f}, {speed.interval.high:.2f}]", f"{speed.censored:.0%}")
        end = float(curve.x_SK.max())
        shown = [f"{place:.3g}" if math.isfinite(place) else f"> {end:.4g}" for place in places]
        middle = float(np.sort(places)[len(places) // 2]) if len(places) % 2 else float(np.median(places))
        median = f"{middle:.3g}" if math.isfinite(middle) else f"> {end:.4g}"
        rows.append((curve.label, "  ".join(shown), median, *cells))
    notes = [
        f"Reached: {stay} evaluations in a row (or all that are left) at or above {threshold:.0%}, the place by the straight line "
        f"between evaluations{f', smoothed over {window}' if window > 1 else ''}. Speed-up: median of the baseline "
        f"({found.baseline}) over median of the method, above 1 is faster.",
        "Interval: 95 %, bootstrap over seeds and tasks, paired; a draw in which a median is not reached counts the end of training, "
        "which pulls the interval towards 1; the last column is the share of such draws.",
    ]
    columns = (
        "Method",
        f"{found.axis.capitalize()} to {threshold:.0%}, per seed",
        "Median",
        "Speed-up",
        "95 % interval",
        "Unreached",
    )
    return Table(f"{found.axis.capitalize()} to {threshold:.0%} of {found.split}", columns, tuple(rows), tuple(notes))
