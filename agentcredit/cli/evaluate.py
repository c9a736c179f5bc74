"""``agentcredit eval``: play a split, store every outcome, and say how it went."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentcredit.cli.options import AsJson, Out, RunName, out_folder, print_json, say
from agentcredit.errors import Interrupted, UsageError, nearest

if TYPE_CHECKING:
    from agentcredit.outcomes import EvalHeader, Evaluation, Outcome
    from agentcredit.stats.intervals import Interval

MODEL = "transformers"
POLICIES = (MODEL, "random", "expert")
FORECASTER = "forecaster"


def evaluate(
    run: RunName,
    split: Annotated[str, typer.Option(help="train, dev, test, or a split of the environment.")] = "test",
    policy: Annotated[str, typer.Option(help="transformers (the run's model), random, or expert.")] = MODEL,
    checkpoint: Annotated[
        int | None,
        typer.Option(help="Step of the checkpoint, -1 for the warm start; default: the last.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Play only N tasks; the result is marked partial.")] = 0,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Sampling temperature, 0 for greedy; default: the run's. Another is kept beside it.",
            show_default=False,
        ),
    ] = None,
    rerank: Annotated[
        str | None,
        typer.Option(
            help="Draw several actions and play the best by this: forecaster (CoPE's ensemble test; trained once).",
            show_default=False,
        ),
    ] = None,
    candidates: Annotated[int, typer.Option(min=1, help="With --rerank: actions to draw.")] = 8,
    horizon: Annotated[int, typer.Option(min=0, help="With --rerank: the forecaster's K; lags 0 … K vote.")] = 2,
    ensemble_decay: Annotated[
        float, typer.Option(min=0, help="With --rerank: lag k weighs exp(-m k); 0: all alike.")
    ] = 0.0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Play a split with a run's policy and store the outcomes; report compares them.

    An evaluation that is there already is shown, not played again.
    """
    from agentcredit import outcomes
    from agentcredit.cli.display import display
    from agentcredit.cli.logs import logging_to
    from agentcredit.rundir import RunDir

    if policy not in POLICIES:
        raise UsageError(f"There is no policy '{policy}' (--policy).{nearest(policy, POLICIES)}")
    if policy != MODEL and (checkpoint is not None or temperature is not None):
        raise UsageError(
            f"--policy {policy} has no checkpoint and no temperature: leave --checkpoint and --temperature out."
        )
    if rerank is not None and rerank != FORECASTER:
        raise UsageError(f"There is no '{rerank}' to rerank by (--rerank).{nearest(rerank, [FORECASTER])}")
    if rerank is not None and policy != MODEL:
        raise UsageError(f"--rerank chooses among the model's actions: leave --policy {policy} out.")
    found = RunDir.find(out_folder(out), run)
    with logging_to(found.path / "logs" / "eval.log"), contextlib.closing(display()) as shown:
        from agentcredit.forecaster.ensemble import Ensemble
        from agentcredit.run_evaluation import evaluate_run

        try:
            path = evaluate_run(
                found,
                split,
                policy=policy,
                checkpoint=checkpoint,
                limit=limit,
                temperature=temperature,
                rerank=None if rerank is None else Ensemble(candidates, horizon, ensemble_decay),
                progress=shown,
            )
        except KeyboardInterrupt as error:
            raise Interrupted(
                "Interrupted; the same command again begins the evaluation anew, from a warm cache."
            ) from error
    evaluation = outcomes.read(path)
    if as_json:
        print_json(_record(evaluation, path))
    else:
        for line in _lines(evaluation):
            typer.echo(line)
        say(f"Stored in {path}")


def _record(evaluation: Evaluation, path: Path) -> dict[str, Any]:
    from agentcredit.outcomes import by_type

    budget = evaluation.header.max_turns
    return {
        "path": str(path),
        "header": asdict(evaluation.header),
        "summary": _with_interval(evaluation.outcomes, budget),
        "by_type": {name: _with_interval(group, budget) for name, group in by_type(evaluation.outcomes).items()},
        "harness_failures": evaluation.harness_failures,
    }


def _interval(outcomes: Sequence[Outcome]) -> Interval | None:
    """As in the report: Wilson's for one episode per task, drawn over tasks where a task was played several times."""
    from agentcredit.report.compare import rate_of

    return rate_of([[outcome for outcome in outcomes if outcome.counted]]).interval


def _with_interval(outcomes: Sequence[Outcome], budget: int) -> dict[str, Any]:
    from agentcredit.outcomes import summarise

    summary, interval = summarise(outcomes, budget), _interval(outcomes)
    return {**asdict(summary), "rate": summary.rate, "interval": None if interval is None else asdict(interval)}


def _lines(evaluation: Evaluation) -> Iterable[str]:
    from agentcredit.outcomes import by_type, summarise

    header = evaluation.header
    whole = summarise(evaluation.outcomes, header.max_turns)
    groups = {"all": list(evaluation.outcomes), **by_type(evaluation.outcomes)}
    partial = ", partial" if header.partial else ""
    yield f"{header.env} {header.split}: {header.data_source}, {header.policy}, checkpoint {_checkpoint(header.step)}"
    yield f"panel {header.panel_name} ({header.panel_size} tasks, {header.panel_sha256[:12]}{partial})"
    if header.policy == MODEL:
        yield _decoding(header)
    width = max(len(name) for name in groups)
    yield f"{'':<{width}}      k/n    rate  95 % interval   turns of successes"
    for name, group in groups.items():
        yield f"{name:<{width}}  {_cells(group, header.max_turns)}"
    if whole.n:
        shares = "  ".join(f"{share:.0%} of the turns: {n}/{whole.n}" for share, n in whole.within.items())
        yield f"success within {shares}"
    yield f"ended by {', '.join(f'{reason} {n}' for reason, n in whole.stop_reasons.items()) or 'nothing'}"
    if evaluation.harness_failures:
        yield f"harness failures (not counted above): {evaluation.harness_failures}"


def _cells(outcomes: Sequence[Outcome], budget: int) -> str:
    from agentcredit.outcomes import summarise

    summary, interval = summarise(outcomes, budget), _interval(outcomes)
    if interval is None:
        return f"{'0/0':>7}  nothing counted"
    turns = "—" if summary.mean_turns is None else f"{summary.mean_turns:.1f}"
    rate = summary.k / summary.n
    return f"{f'{summary.k}/{summary.n}':>7}  {rate:>6.1%}  {interval.low:>5.1%} – {interval.high:<6.1%}  {turns:>6}"


def _decoding(header: EvalHeader) -> str:
    how = "greedy" if header.temperature == 0 else f"temperature {header.temperature:g}"
    own = "" if header.own_temperature else " (not the run's own)"
    per_task = "1 episode per task" if header.repeats == 1 else f"{header.repeats} episodes per task"
    chosen = f", {header.rerank}" if header.rerank else ""
    return f"{how}{own}, {per_task}{chosen}"


def _checkpoint(step: int) -> str:
    return "warm start" if step < 0 else f"step {step}"
