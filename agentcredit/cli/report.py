"""``agentcredit report``: measured results side by side, with how sure they are."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agentcredit.outcomes import Evaluation
    from agentcredit.report.tables import Table

_WIDTH_OF_A_FILE = 220


class ReportAxis(StrEnum):
    """What a learning curve is drawn over."""

    STEPS = "steps"
    EPISODES = "episodes"
    TOKENS = "tokens"
    SECONDS = "seconds"


class ReportFormat(StrEnum):
    """How the report is written."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


def report(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Runs to report: names, their beginnings, or folders; none: all.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    split: Annotated[
        str, typer.Option(help="A split, or a role (train, dev, test); default: test where any run has it, else dev.")
    ] = "",
    baseline: Annotated[
        str, typer.Option(help="Method (or its whole label) that differences are taken to; default: grpo.")
    ] = "",
    output: Annotated[ReportFormat, typer.Option("--format", help="How to write it.")] = ReportFormat.TABLE,
    by_type: Annotated[bool, typer.Option("--by-type", help="Also success per task type.")] = False,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="Evaluations sampled at it; default: at the runs' own.", show_default=False),
    ] = None,
    thresholds: Annotated[
        list[float] | None,
        typer.Option(
            "--threshold",
            min=0,
            max=1,
            help="Show dev curves, and how soon they reach this success rate (0.4); may be repeated.",
            show_default=False,
        ),
    ] = None,
    axis: Annotated[ReportAxis, typer.Option(help="With --threshold: what is counted.")] = ReportAxis.STEPS,
) -> None:
    """Success rates of methods on environments: k/n, 95 % intervals, and paired differences to the baseline.

    Results that were not measured alike (task panel, configuration, turn budget, sampling) are refused with exit code 5.
    """
    from agentcredit.report import collect, compare, render, tables

    if thresholds:
        _efficiency(collect.collect(out, runs or ()), thresholds, baseline, axis, output)
        return
    selection = collect.select(collect.collect(out, runs or ()), split, temperature)
    sections = compare.compare(selection.evaluations, baseline)
    if output is ReportFormat.JSON:
        typer.echo(render.as_json(sections, selection.notes, by_type), nl=False)
    elif output is ReportFormat.CSV:
        typer.echo(render.as_csv(sections, by_type), nl=False)
    elif output is ReportFormat.MARKDOWN:
        typer.echo(render.markdown(tables.report_tables(sections, by_type)), nl=False)
        for note in selection.notes:
            typer.echo(f"\n{note}")
    else:
        print_tables(tables.report_tables(sections, by_type), selection.notes)


def _efficiency(
    evaluations: list[Evaluation], thresholds: list[float], baseline: str, axis: ReportAxis, output: ReportFormat
) -> None:
    from agentcredit.errors import UsageError
    from agentcredit.report import efficiency, render

    if output not in (ReportFormat.TABLE, ReportFormat.MARKDOWN):
        raise UsageError(f"--threshold writes a table or markdown, not {output} (--format).")
    found = efficiency.tables(efficiency.efficiency(evaluations, thresholds, baseline, axis.value))
    if output is ReportFormat.MARKDOWN:
        typer.echo(render.markdown(found), nl=False)
    else:
        print_tables(found)


def print_tables(shown: list[Table], notes: tuple[str, ...] = ()) -> None:
    """Prints tables to standard output with rich; wide and plain where that is a file or a pipe."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_OF_A_FILE)
    for table in shown:
        grid = RichTable(title=Text(table.title, style="bold"), title_justify="left", show_edge=False, pad_edge=False)
        for index, name in enumerate(table.columns):
            grid.add_column(Text(name), justify="left" if index == 0 else "right", overflow="fold")
        for row in table.rows:
            # Text, not str: rich would read the brackets of an interval as its own markup.
            grid.add_row(*(Text(cell) for cell in row))
        console.print(grid)
        for note in table.notes:
            console.print(Text(note, style="dim"))
        console.print()
    for note in notes:
        console.print(Text(note))
