"""From evaluations to numbers: one section per environment, split and model; one row per method in it.

Rates are k/n over all episodes that count. Their interval is Wilson's for one seed, and a hierarchical bootstrap over
seeds and tasks for several. Differences to the baseline are paired by task, and by seed where there are several; their
p-values are Holm-adjusted over the methods of the section.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from agentcredit.errors import ComparisonRefused, UsageError, nearest
from agentcredit.outcomes import EvalHeader, Evaluation, Outcome, Summary, summarise
from agentcredit.report.collect import TEXT_POLICIES, is_method, is_warm_start
from agentcredit.report.likeness import check_alike
from agentcredit.report.published import Published, published_for
from agentcredit.stats.intervals import PLUS_FOUR, Interval, bootstrap_mean, hierarchical_bootstrap, wilson
from agentcredit.stats.paired import Comparison, compare_one_seed, compare_seeds, holm

DEFAULT_BASELINE = "grpo"
WARM_START = "warm start"


@dataclass(frozen=True, slots=True)
class Rate:
    """k successes of n counted episodes, and the interval of their rate; None where n is 0."""

    k: int
    n: int
    interval: Interval | None

    @property
    def value(self) -> float | None:
        """k/n, or None when nothing was counted."""
        return self.k / self.n if self.n else None


@dataclass(frozen=True)
class Row:
    """One method (or reference policy, or the warm start) in a section, over all its seeds.

    ``per_seed`` are success rates in the order of ``seeds``; ``score`` is the mean of graded scores with its interval,
    None where scores only repeat success. ``comparison`` is None for the baseline itself and for reference rows.
    """

    label: str
    method: str
    is_method: bool
    evaluations: tuple[Evaluation, ...]
    rate: Rate
    per_seed: tuple[float | None, ...]
    summary: Summary
    score: tuple[float, Interval] | None
    by_type: dict[str, Rate]
    published: tuple[Published, ...]
    comparison: Comparison | None = None
    p_holm: float | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs, in the order of ``per_seed``."""
        return tuple(e.header.seed for e in self.evaluations)

    @property
    def steps(self) -> tuple[int, ...]:
        """Training steps of the checkpoints."""
        return tuple(e.header.step for e in self.evaluations)

    @property
    def harness_failures(self) -> int:
        """Episodes that the harness ended; in no rate."""
        return sum(e.harness_failures for e in self.evaluations)


@dataclass(frozen=True)
class Section:
    """Rows that may be compared: one environment, split and model. ``header`` is a typical one of theirs."""

    header: EvalHeader
    baseline: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())


def compare(evaluations: Sequence[Evaluation], baseline: str = "") -> list[Section]:
    """Sections in the order of environment, split and model.

    Args:
        evaluations: what ``collect.select`` chose.
        baseline: name or label of the method that differences are taken to; empty: grpo where there is one.

    Raises:
        ComparisonRefused: results of a section were not measured alike, or one seed of a method is there twice.
        UsageError: the named baseline is nowhere, or is ambiguous.
    """
    by_section: dict[tuple[str, str, str], list[Evaluation]] = {}
    for evaluation in evaluations:
        header = evaluation.header
        by_section.setdefault((header.env, header.split, header.model), []).append(evaluation)
    if baseline:
        trained = [e.header for e in evaluations if is_method(e.header)]
        methods = {name for header in trained for name in (header.method, header.label)}
        if baseline not in methods:
            raise UsageError(
                f"No run of method '{baseline}' (--baseline) is evaluated here.{nearest(baseline, methods)}"
            )
    return [_section(group, baseline) for _, group in sorted(by_section.items())]


def _section(evaluations: list[Evaluation], baseline: str) -> Section:
    check_alike(evaluations)
    rows = [_row(label, group) for label, group in _by_label(evaluations).items()]
    rows.sort(key=lambda row: (row.is_method, row.label))
    models = [e for e in evaluations if e.header.policy not in TEXT_POLICIES]
    name = baseline or DEFAULT_BASELINE
    base, note = _baseline(rows, name, explicit=bool(baseline))
    notes = [note] if note else []
    if base is not None:
        compared = [row if row is base or not row.is_method else _against(row, base, notes) for row in rows]
        rows = _holm(compared)
    header = (models or evaluations)[0].header
    return Section(header, base.label if base else "", tuple(rows), tuple(notes))


def _by_label(evaluations: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """Evaluations of each row, one per seed, sorted by seed."""
    groups: dict[str, dict[int, Evaluation]] = {}
    for evaluation in evaluations:
        header, label = evaluation.header, row_label(evaluation.header)
        earlier = groups.setdefault(label, {}).setdefault(header.seed, evaluation)
        # Every run of a comparison starts from the same weights and evaluates them: one of these is enough.
        if earlier is not evaluation and is_method(header):
            raise ComparisonRefused(
                f"{label} with seed {header.seed} is there twice, in runs {earlier.header.run} and {header.run}; "
                "name the runs to report (`agentcredit report RUN RUN`)."
            )
    return {label: [by_seed[seed] for seed in sorted(by_seed)] for label, by_seed in groups.items()}


def row_label(header: EvalHeader) -> str:
    """What the row of an evaluation is called: the method's label, the reference policy, or the warm start."""
    if header.policy in TEXT_POLICIES:
        return header.policy
    return WARM_START if is_warm_start(header) else header.label


def _row(label: str, evaluations: list[Evaluation]) -> Row:
    counted = [outcome for e in evaluations for outcome in e.counted]
    header = evaluations[0].header
    trained = is_method(header)
    types = sorted({outcome.task_type for outcome in counted})
    graded = any(outcome.score != float(outcome.success) for outcome in counted)
    return Row(
        label=label,
        method=header.method if trained else label,
        is_method=trained,
        evaluations=tuple(evaluations),
        rate=rate_of([e.counted for e in evaluations]),
        per_seed=tuple(summarise(e.outcomes, e.header.max_turns).rate for e in evaluations),
        summary=summarise((o for e in evaluations for o in e.outcomes), header.max_turns),
        score=_mean_score([e.counted for e in evaluations]) if graded else None,
        by_type={t: rate_of([[o for o in e.counted if o.task_type == t] for e in evaluations]) for t in types},
        published=published_for(header.method, header.env) if trained else (),
    )


def rate_of(outcomes_S: Sequence[Sequence[Outcome]]) -> Rate:
    """Success rate over the seeds' counted outcomes, with the interval that their design calls for."""
    used = [outcomes for outcomes in outcomes_S if outcomes]
    n = sum(len(outcomes) for outcomes in used)
    k = sum(outcome.success for outcomes in used for outcome in outcomes)
    if not used:
        return Rate(0, 0, None)
    values_ST = matrix(used, _tasks(used), lambda outcome: float(outcome.success))
    if len(used) == 1 and values_ST.shape[1] == n:
        return Rate(k, n, wilson(k, n))
    interval = (
        bootstrap_mean(values_ST[0], PLUS_FOUR) if len(used) == 1 else hierarchical_bootstrap(values_ST, PLUS_FOUR)
    )
    return Rate(k, n, interval.within(0.0, 1.0))


def matrix(
    outcomes_S: Sequence[Sequence[Outcome]], tasks: Sequence[str], value: Callable[[Outcome], float]
) -> np.ndarray:
    """Values [seeds, tasks]: means over a task's counted episodes, NaN where there are none."""
    column = {task: index for index, task in enumerate(tasks)}
    sums, counts = np.zeros((2, len(outcomes_S), len(tasks)))
    for row, outcomes in enumerate(outcomes_S):
        for outcome in outcomes:
            if outcome.task_id in column:
                sums[row, column[outcome.task_id]] += value(outcome)
                counts[row, column[outcome.task_id]] += 1
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


def _tasks(outcomes_S: Sequence[Sequence[Outcome]]) -> list[str]:
    return sorted({outcome.task_id for outcomes in outcomes_S for outcome in outcomes})


def _mean_score(outcomes_S: Sequence[Sequence[Outcome]]) -> tuple[float, Interval]:
    used = [outcomes for outcomes in outcomes_S if outcomes]
    values_ST = matrix(used, _tasks(used), lambda outcome: outcome.score)
    return float(np.nanmean(values_ST)), hierarchical_bootstrap(values_ST).within(0.0, 1.0)


def _baseline(rows: Sequence[Row], name: str, explicit: bool) -> tuple[Row | None, str]:
    """The row that differences are taken to, or None and a sentence why there is none."""
    found = [row for row in rows if row.is_method and name in (row.label, row.method)]
    exact = [row for row in found if row.label == name]
    if len(exact or found) == 1:
        return (exact or found)[0], ""
    if not found:
        return None, f"No differences: no run of the baseline '{name}' is evaluated here."
    labels = ", ".join(row.label for row in found)
    if explicit:
        raise UsageError(f"Baseline '{name}' (--baseline) may be any of: {labels}; give the whole label.")
    return None, f"No differences: '{name}' may be any of {labels}; name one with --baseline."


def _against(row: Row, base: Row, notes: list[str]) -> Row:
    """The row with its paired difference to the baseline, over the seeds and tasks that both have."""
    seeds = sorted(set(row.seeds) & set(base.seeds))
    ours, theirs = ([e.counted for e in side.evaluations if e.header.seed in seeds] for side in (row, base))
    tasks = sorted(set(_tasks(ours)) & set(_tasks(theirs)))
    values, baseline = (matrix(side, tasks, lambda outcome: float(outcome.success)) for side in (ours, theirs))
    if not np.isfinite(values - baseline).any():
        notes.append(f"{row.label}: no difference, for want of a seed and task in common with {base.label}.")
        return row
    if seeds != sorted(row.seeds) or seeds != sorted(base.seeds):
        notes.append(f"{row.label}: difference over the seeds in common, {', '.join(map(str, seeds))}.")
    single = len(seeds) == 1 and row.evaluations[0].header.repeats == 1
    comparison = compare_one_seed(values[0], baseline[0]) if single else compare_seeds(values, baseline)
    return dataclasses.replace(row, comparison=comparison)


def _holm(rows: Sequence[Row]) -> list[Row]:
    adjusted = iter(holm([row.comparison.p for row in rows if row.comparison]))
    return [dataclasses.replace(row, p_holm=next(adjusted)) if row.comparison else row for row in rows]
