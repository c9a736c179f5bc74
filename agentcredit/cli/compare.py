"""``agentcredit compare``: train several methods over several seeds, evaluate them, and print the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentcredit.cli.options import Config, Out, Sets, resolved, say
from agentcredit.errors import Interrupted, RunFailed, UsageError

if TYPE_CHECKING:
    from agentcredit.config import RunConfig
    from agentcredit.launch.local import Command, Ended


def compare(
    methods: Annotated[
        str | None, typer.Option(help="Methods, joined by commas; `proas/gigpo` puts proas on gigpo.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds: 0, 1, ….")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time.")] = None,
    env: Annotated[str | None, typer.Option(help="Environment: see `envs list`.")] = None,
    model: Annotated[str | None, typer.Option(help="tiny, smollm2, a folder, or a hub id.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    config: Config = None,
    sets: Sets = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and train nothing.")] = False,
) -> None:
    """Train methods over seeds on the same tasks from the same weights, evaluate them, and print the table.

    Repeating the command continues: what is trained or evaluated already is not done again.
    """
    from agentcredit.comparison import members
    from agentcredit.config import ArmConfig

    from_sources = resolved(config, sets, env=env, model=model, steps=steps, out=out)
    settings = from_sources.config
    given: dict[str, Any] = {}
    if methods is not None:
        given["arms"] = tuple(
            ArmConfig(method=name, base=base)
            for name, _, base in (entry.strip().partition("/") for entry in methods.split(","))
        )
    if seeds is not None:
        given["seeds"] = tuple(range(seeds))
    if jobs is not None:
        given["jobs"] = jobs
    settings = settings.model_copy(update={"compare": settings.compare.model_copy(update=given)})
    runs = members(settings, from_sources.given)
    if dry_run:
        for member in runs:
            typer.echo(" ".join(member.train().argv))
        for member in runs:
            for command in member.evaluations(settings.compare.splits):
                typer.echo(" ".join(command.argv))
        return
    waiting = [member.train() for member in runs if not member.is_trained()]
    say(f"{len(runs)} runs, {len(waiting)} to train, {settings.compare.jobs} at a time, in {settings.out}")
    _run(waiting, settings.compare.jobs)
    _run([c for member in runs for c in member.evaluations(settings.compare.splits)], settings.compare.jobs)
    _report(settings, [member.name for member in runs])


def _run(commands: list[Command], jobs: int) -> None:
    from agentcredit.launch.local import run_all

    try:
        ended = run_all(commands, jobs, lambda command, line: say(f"{command.name}: {line}"))
    except KeyboardInterrupt as error:
        raise Interrupted("Interrupted; the same command again continues the comparison.") from error
    failed: list[Ended] = [result for result in ended if result.code != 0]
    if failed:
        first = failed[0]
        raise RunFailed(
            f"{len(failed)} of {len(commands)} commands failed; {first.command.name} ended with code {first.code}: "
            f"{first.last_line.removeprefix('Error: ')} Repeat the command to continue the others."
        )


def _report(settings: RunConfig, names: list[str]) -> None:
    from agentcredit.cli.report import print_tables
    from agentcredit.report import collect, compare, tables

    for split in settings.compare.splits:
        try:
            selection = collect.select(collect.collect(settings.out, names), split)
        except UsageError:
            continue  # a role without a split in this environment
        print_tables(tables.report_tables(compare.compare(selection.evaluations, ""), False), selection.notes)
