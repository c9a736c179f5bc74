"""Tables and sections as text: ``table`` and ``markdown`` for readers, ``csv`` and ``json`` for programs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from agentcredit.report.compare import Rate, Row, Section
from agentcredit.report.tables import Table
from agentcredit.stats.intervals import Interval

Format = Literal["table", "markdown", "csv", "json"]

REPORT_FORMAT = 1


def markdown(tables: Sequence[Table]) -> str:
    """GitHub's Markdown: a heading, a table and footnotes each."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    lines = [f"### {table.title}", "", _line(table.columns), _line(["---"] * len(table.columns))]
    lines += [_line(row) for row in table.rows]
    lines += ["", *(f"- {note}" for note in table.notes), *([""] if table.notes else [])]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_json(sections: Sequence[Section], notes: Sequence[str], by_type: bool = False) -> str:
    """One object: ``format``, ``notes``, ``sections`` with ``rows``. Rates are fractions, intervals [low, high]."""
    document = {
        "format": REPORT_FORMAT,
        "notes": list(notes),
        "sections": [
            {
                **_identity(section),
                "baseline": section.baseline or None,
                "notes": list(section.notes),
                "rows": [_record(row, by_type) for row in section.rows],
            }
            for section in sections
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_csv(sections: Sequence[Section], by_type: bool = False) -> str:
    """One line per row of a section (``task_type`` empty), and with ``by_type`` one per task type."""
    records = list(_flat(sections, by_type))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def _flat(sections: Sequence[Section], by_type: bool) -> Iterator[dict[str, Any]]:
    for section in sections:
        for row in section.rows:
            record = _record(row, by_type=False)
            low, high = record.pop("interval") or (None, None)
            difference = record.pop("difference") or dict.fromkeys(
                ("value", "low", "high", "p", "p_holm", "pairs", "test")
            )
            score = record.pop("score") or dict.fromkeys(("value", "low", "high"))
            record.pop("published")
            record.pop("stop_reasons")
            flat = {
                **_identity(section),
                "task_type": "",
                **{key: _joined(value) for key, value in record.items()},
                "low": low,
                "high": high,
                **{f"score_{key}": score[key] for key in ("value", "low", "high")},
                **{
                    f"difference_{key}": difference[key]
                    for key in ("value", "low", "high", "p", "p_holm", "pairs", "test")
                },
            }
            yield flat
            if by_type:
                for name, rate in row.by_type.items():
                    low, high = _ends(rate.interval) or (None, None)
                    kept = {key: flat[key] for key in (*_identity(section), "label", "method", "seeds", "steps")}
                    kept |= {"task_type": name, "k": rate.k, "n": rate.n, "rate": rate.value, "low": low, "high": high}
                    yield {key: kept.get(key) for key in flat}


def _joined(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _identity(section: Section) -> dict[str, Any]:
    header = section.header
    names = ("env", "split", "role", "model", "data_source", "official", "partial", "panel_name", "panel_sha256")
    names += ("panel_size", "env_version", "max_turns", "temperature", "repeats", "comparison", "warm_start")
    return {name: getattr(header, name) for name in names}


def _record(row: Row, by_type: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "label": row.label,
        "method": row.method,
        "seeds": list(row.seeds),
        "steps": list(row.steps),
        **_rate(row.rate),
        "per_seed": list(row.per_seed),
        "mean_turns": row.summary.mean_turns,
        "harness_failures": row.harness_failures,
        "stop_reasons": row.summary.stop_reasons,
        "score": None,
        "difference": None,
        "published": [dataclasses.asdict(entry) for entry in row.published],
    }
    if row.score:
        record["score"] = {"value": row.score[0], "low": row.score[1].low, "high": row.score[1].high}
    if row.comparison:
        paired = row.comparison
        record["difference"] = {
            "value": paired.difference,
            "low": paired.interval.low,
            "high": paired.interval.high,
            "p": paired.p,
            "p_holm": row.p_holm,
            "pairs": paired.pairs,
            "wins": paired.wins,
            "losses": paired.losses,
            "test": paired.test,
        }
    if by_type:
        record["by_type"] = {name: _rate(rate) for name, rate in row.by_type.items()}
    return record


def _rate(rate: Rate) -> dict[str, Any]:
    kind = rate.interval.kind if rate.interval else None
    return {"k": rate.k, "n": rate.n, "rate": rate.value, "interval": _ends(rate.interval), "interval_kind": kind}


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
