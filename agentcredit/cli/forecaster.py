"""``agentcredit forecaster``: train the forecaster that ``eval --rerank forecaster`` acts by, and say how well it forecasts."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from agentcredit.cli.options import AsJson, Out, RunName, out_folder, print_json, say
from agentcredit.errors import Interrupted


def forecaster(
    run: RunName,
    checkpoint: Annotated[
        int | None, typer.Option(help="Step of the checkpoint; default: the last.", show_default=False)
    ] = None,
    horizon: Annotated[int, typer.Option(min=0, help="Actions to forecast beyond the next (K).")] = 2,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Train a LoRA forecaster on a run's stored successes, beside its policy, and measure it on held-out tasks.

    One that is there already is shown, not trained again. `eval --rerank forecaster` acts by it.
    """
    from agentcredit.cli.display import display
    from agentcredit.cli.logs import logging_to
    from agentcredit.rundir import RunDir

    found = RunDir.find(out_folder(out), run)
    with logging_to(found.path / "logs" / "eval.log"), contextlib.closing(display()) as shown:
        from agentcredit.run_evaluation import train_forecaster

        try:
            trained = train_forecaster(found, checkpoint, horizon, shown)
        except KeyboardInterrupt as error:
            raise Interrupted("Interrupted; the same command again begins the forecaster anew.") from error
    facts = trained.facts
    if as_json:
        print_json({"path": str(trained.folder), **facts})
        return
    typer.echo(f"learned from {facts['episodes']} successes; measured on {facts['held_out_episodes']} of other tasks")
    if facts["held_out"]:
        typer.echo(f"{'lag':>3}  {'nll':>7}  exact")
        for lag in range(horizon + 1):
            if f"nll_lag{lag}" in facts["held_out"]:
                nll, exact = facts["held_out"][f"nll_lag{lag}"], facts["held_out"][f"top1_acc_lag{lag}"]
                typer.echo(f"{lag:>3}  {nll:>7.3f}  {exact:.1%}")
    say(f"Stored in {trained.folder}")
