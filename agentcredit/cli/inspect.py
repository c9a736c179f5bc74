"""``agentcredit inspect``: what a run's method knows, to be read or drawn."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agentcredit.cli.options import AsJson, Out, RunName, out_folder, print_json, say
from agentcredit.errors import UsageError, nearest

LEVELS = ("instance", "lifted")
FORMATS = ("text", "dot", "json")


def inspect(
    run: RunName,
    graph: Annotated[
        str, typer.Option("--graph", metavar="TASK", help="Print the reference graph of a task id or a task type.")
    ] = "",
    level: Annotated[
        str, typer.Option("--level", help="instance or lifted; default: the one that knows the name.")
    ] = "",
    form: Annotated[str, typer.Option("--format", help="text, dot (Graphviz) or json.")] = "text",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Look into a run: which reference graphs its method keeps, or one of them with distances to the goal.

    The graphs are those of the last whole checkpoint. `inspect RUN --graph TASK --format dot | dot -Tsvg` draws one.
    """
    from agentcredit.rundir import RunDir

    if level and level not in LEVELS:
        raise UsageError(f"--level '{level}' is not known.{nearest(level, LEVELS)}")
    if form not in FORMATS:
        raise UsageError(f"--format '{form}' is not known.{nearest(form, FORMATS)}")
    found = RunDir.find(out_folder(out), run)
    _graphs(found, graph, level, "json" if as_json else form)


def _graphs(run: Any, name: str, level: str, form: str) -> None:
    from agentcredit.methods import graph_export, run_graphs

    graphs, where = run_graphs.graphs_of(run)
    if level and not name:
        graphs = {key: graph for key, graph in graphs.items() if key[0] == level}
    if not name:
        rows = run_graphs.summary(graphs)
        if form == "dot":
            raise UsageError("--format dot draws one graph: name it with --graph.")
        if form == "json":
            print_json({"run": run.name, "source": where, "levels": rows})
            return
        say(f"{run.name}: {where}")
        if not rows:
            say("There is no graph yet: no success has been seen.")
        for row in rows:
            typer.echo(
                f"{row['level']:<8}  {row['graphs']} graphs, {row['with_goal']} with a way to the goal, {row['nodes']} nodes; "
                f"largest: {row['largest']} ({row['largest_nodes']} nodes)"
            )
        return
    key = run_graphs.find(graphs, name, level)
    drawn = graph_export.drawing(run_graphs.title(key), graphs[key])
    if form == "json":
        print_json({"run": run.name, "source": where, **graph_export.to_plain(drawn)})
        return
    say(f"{run.name}: {where}")
    typer.echo(graph_export.to_dot(drawn) if form == "dot" else graph_export.to_text(drawn), nl=False)
