"""Sections as tables of text: what is printed on a terminal or in Markdown. Rates and differences are in points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcredit.outcomes import Evaluation
from agentcredit.report.compare import Rate, Row, Section
from agentcredit.stats.intervals import Interval

NONE = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """A title, columns, rows of as many cells, and footnotes."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def report_tables(sections: Sequence[Section], by_type: bool = False) -> list[Table]:
    """An overview (method × environment) where there are several sections, then each section, and its task types."""
    tables = [_overview(sections)] if len(sections) > 1 else []
    for section in sections:
        tables.append(_section_table(section))
        if by_type:
            tables.append(_type_table(section))
    return tables


def _overview(sections: Sequence[Section]) -> Table:
    labels = list(dict.fromkeys(row.label for section in sections for row in section.rows))
    cells: list[tuple[str, ...]] = []
    for label in labels:
        found = [next((row for row in section.rows if row.label == label), None) for section in sections]
        cells.append((label, *(NONE if row is None else _overview_cell(row) for row in found)))
    columns = ("Method", *(f"{s.header.env} {s.header.split} ({s.header.model})" for s in sections))
    return Table("Success % [95 % interval] k/n, and Δ to the baseline in points", columns, tuple(cells))


def _overview_cell(row: Row) -> str:
    cell = f"{_points(row.rate.value)} {_interval(row.rate.interval)} {row.rate.k}/{row.rate.n}"
    return f"{cell} Δ {100 * row.comparison.difference:+.1f}" if row.comparison else cell


def _section_table(section: Section) -> Table:
    header = section.header
    graded = any(row.score for row in section.rows)
    columns = ["Method", "Success %", "95 % interval", "k/n", "Per seed", "Δ points", "p (Holm)", "Turns"]
    columns += [*(["Score %"] if graded else []), "Published"]
    sources = _sources(section)
    rows = tuple(_row_cells(row, graded, sources) for row in section.rows)
    marks = _marks([evaluation for row in section.rows for evaluation in row.evaluations])
    title = f"{header.env} {header.split} ({header.role}), model {header.model}: {', '.join(marks)}"
    return Table(title, tuple(columns), rows, tuple(_notes(section, graded, sources)))


def _sources(section: Section) -> dict[str, int]:
    """Numbers of the footnotes that say where published figures come from."""
    found = dict.fromkeys(p.provenance for row in section.rows for p in row.published)
    return {provenance: number for number, provenance in enumerate(found, start=1)}


def _row_cells(row: Row, graded: bool, sources: dict[str, int]) -> tuple[str, ...]:
    difference, p = NONE, NONE
    if row.comparison:
        difference = f"{100 * row.comparison.difference:+.1f} {_interval(row.comparison.interval, signed=True)}"
        p = "" if row.p_holm is None else ("<0.001" if row.p_holm < 0.001 else f"{row.p_holm:.3f}")
    seeds = " ".join(f"s{seed}:{_points(rate)}" for seed, rate in zip(row.seeds, row.per_seed, strict=True))
    score = [f"{100 * row.score[0]:.1f} {_interval(row.score[1])}" if row.score else NONE] if graded else []
    turns = NONE if row.summary.mean_turns is None else f"{row.summary.mean_turns:.1f}"
    return (
        row.label,
        _points(row.rate.value),
        _interval(row.rate.interval),
        f"{row.rate.k}/{row.rate.n}",
        seeds,
        difference,
        p,
        turns,
        *score,
        ", ".join(f"{p.text} [{sources[p.provenance]}]" for p in row.published) or NONE,
    )


def _notes(section: Section, graded: bool, sources: dict[str, int]) -> list[str]:
    header = section.header
    several = any(len(row.seeds) > 1 for row in section.rows)
    notes = [
        f"Panel {header.panel_name}, {header.panel_size} tasks, SHA-256 {header.panel_sha256[:16]}; "
        f"{header.env} version {header.env_version} ({header.package}).",
        f"Decoding: {_decoding_of(section)}. Checkpoint: the last one, {_steps(section)}; none was selected.",
    ]
    if any(len(row.seeds) == 1 for row in section.rows):
        notes.append("1 seed: the interval covers tasks only (Wilson).")
    if several:
        notes.append("Several seeds: hierarchical bootstrap over seeds and tasks, 10,000 draws.")
    compared = [row for row in section.rows if row.comparison]
    if compared:
        tests = {row.comparison.test for row in compared if row.comparison}
        names = {"mcnemar": "exact McNemar test (1 seed)", "bootstrap": "paired hierarchical bootstrap"}
        notes.append(
            f"Δ: difference to {section.baseline}, paired by task{' and seed' if several else ''}; p by {' or '.join(names[t] for t in sorted(tests))}, "
            f"Holm-adjusted over {len(compared)} comparison{'s' if len(compared) > 1 else ''}."
        )
    if graded:
        notes.append("Score: the environment's own, 0 to 100, with a bootstrap interval.")
    notes.append("Turns: mean over successes.")
    failures = [f"{row.label} {row.harness_failures}" for row in section.rows if row.harness_failures]
    if failures:
        notes.append(f"Episodes ended by the harness, in no rate: {', '.join(failures)}.")
    if sources:
        notes.append(
            "Published: other protocols, so not comparable with the rates here; a + is a gain over that paper's GRPO."
        )
        notes += [f"[{number}] {provenance}." for provenance, number in sources.items()]
    return [*notes, *section.notes]


def _type_table(section: Section) -> Table:
    types = sorted({name for row in section.rows for name in row.by_type})
    rows = tuple((name, *(_type_cell(row.by_type.get(name)) for row in section.rows)) for name in types)
    header = section.header
    return Table(
        f"{header.env} {header.split}, model {header.model}, by task type: success % [95 % interval] k/n",
        ("Task type", *(row.label for row in section.rows)),
        rows,
        ("Intervals of single task types are wide, and are not corrected for their number.",),
    )


def _type_cell(rate: Rate | None) -> str:
    return NONE if rate is None else f"{_points(rate.value)} {_interval(rate.interval)} {rate.k}/{rate.n}"


def _marks(evaluations: Sequence[Evaluation]) -> list[str]:
    """The data's source, and what else a reader must not overlook."""
    headers = [evaluation.header for evaluation in evaluations]
    marks = [headers[0].data_source]
    if not headers[0].official and "generated" in headers[0].data_source:
        marks.append("not the official games")
    if any(header.partial for header in headers):
        marks.append("PARTIAL: not the whole panel")
    return marks


def _decoding_of(section: Section) -> str:
    sampled = [e for row in section.rows for e in row.evaluations if e.header.policy not in ("random", "expert")]
    return _decoding(sampled[0] if sampled else section.rows[0].evaluations[0])


def _decoding(evaluation: Evaluation) -> str:
    header = evaluation.header
    how = "greedy" if header.temperature == 0 else f"temperature {header.temperature:g}"
    episodes = "1 episode" if header.repeats == 1 else f"{header.repeats} episodes"
    return f"{how}, {episodes} per task, at most {header.max_turns} turns"


def _steps(section: Section) -> str:
    steps = sorted({step for row in section.rows if row.is_method for step in row.steps})
    if len(steps) <= 1:
        return _step(steps[0]) if steps else "none trained"
    where = "; ".join(f"{row.label}: {', '.join(map(str, row.steps))}" for row in section.rows if row.is_method)
    return f"NOT TRAINED EQUALLY LONG (steps {where})"


def _step(step: int) -> str:
    return "warm start" if step < 0 else f"step {step}"


def _points(rate: float | None) -> str:
    return NONE if rate is None else f"{100 * rate:.1f}"


def _interval(interval: Interval | None, signed: bool = False) -> str:
    if interval is None:
        return NONE
    low, high = 100 * interval.low, 100 * interval.high
    return f"[{low:+.1f}, {high:+.1f}]" if signed else f"[{low:.1f}, {high:.1f}]"
