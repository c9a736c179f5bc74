"""``agentcredit runs``: what has been run, whether it is whole, and the MLflow page."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from agentcredit.cli.options import AsJson, Out, RunName, out_folder, print_json, say
from agentcredit.errors import MissingError, RunFailed, UsageError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, show and verify runs; open the MLflow page.")


@app.command("list")
def list_runs(out: Out = None, as_json: AsJson = False) -> None:
    """List the runs, the one started last at the end."""
    from agentcredit.rundir import RunDir

    folder = out_folder(out)
    rows = [_row(RunDir.load(folder / name)) for name in RunDir.names(folder)]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say(f"There is no run in {folder}.")
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        typer.echo(f"{row['name']:<{width}}  {row['status']:<11}  step {row['step']}/{row['steps']}  {row['started']}")


@app.command()
def show(run: RunName, out: Out = None, as_json: AsJson = False) -> None:
    """Show a run: attempts, last metrics, evaluations, files."""
    from agentcredit.rundir import RunDir

    found = RunDir.find(out_folder(out), run)
    info, metrics = found.info(), found.metrics()
    record: dict[str, Any] = {
        **_row(found),
        "path": str(found.path),
        "mlflow_run_id": info["mlflow_run_id"],
        "forked_from": info["forked_from"],
        "attempts": info["attempts"],
        "metrics": metrics[-1] if metrics else {},
        "evaluations": [_evaluation(path) for path in sorted(found.evaluations.glob("*.jsonl"))],
    }
    if as_json:
        print_json(record)
        return
    for key in ("path", "status", "mlflow_run_id", "forked_from"):
        if record[key]:
            typer.echo(f"{key.replace('_', ' '):<14} {record[key]}")
    for attempt in record["attempts"]:
        ended = attempt["ended"] or "—"
        typer.echo(f"attempt {attempt['attempt']:<6} {attempt['status']}, {attempt['started']} to {ended}")
    for name, value in record["metrics"].items():
        typer.echo(f"  {name} = {value:.6g}" if isinstance(value, float) else f"  {name} = {value}")
    for evaluation in record["evaluations"]:
        typer.echo(f"evaluation     {evaluation['file']}: {evaluation['successes']}/{evaluation['episodes']}")


@app.command()
def verify(
    run: RunName,
    against: Annotated[
        str, typer.Option(help="Another run that should be the same: compare settings, metrics and weights.")
    ] = "",
    tolerance: Annotated[
        float, typer.Option(min=0, help="With --against: largest difference of a number; 0: equal bit for bit.")
    ] = 0.0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Check that a run's files are whole, and with --against that two runs agree. Exit code 1 when not."""
    from agentcredit.rundir import RunDir
    from agentcredit.verify import disagreements, problems

    folder = out_folder(out)
    found = RunDir.find(folder, run)
    damage = problems(found)
    differing = disagreements(found, RunDir.find(folder, against), tolerance) if against else []
    if as_json:
        print_json({"run": str(found.path), "problems": damage, "disagreements": differing})
    else:
        for line in [*damage, *differing]:
            typer.echo(line)
    if damage or differing:
        raise RunFailed(f"{found.path}: {len(damage)} problems, {len(differing)} disagreements.")
    if not as_json:
        typer.echo(f"{found.path} is whole{f' and agrees with {against}' if against else ''}.")


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
    out: Out = None,
) -> None:
    """Serve MLflow's page of these runs, on this machine only, until Ctrl-C."""
    import os

    folder = out_folder(out)
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise MissingError(f"There is no MLflow store at {uri}: `agentcredit train` makes one, --out looks elsewhere.")
    if not _is_free(port):
        raise UsageError(f"Port {port} on 127.0.0.1 is in use: give another with --port.")
    say(f"MLflow at http://127.0.0.1:{port} (Ctrl-C ends it)")
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", "127.0.0.1"]
    variables = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = subprocess.Popen([*command, "--port", str(port), "--workers", "1"], env=variables)
    try:
        code = server.wait()
    except KeyboardInterrupt:
        server.terminate()
        server.wait()
        return
    if code:
        raise RunFailed(f"The MLflow server ended with code {code}; its message is above.")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _row(run: Any) -> dict[str, Any]:
    attempts = run.info()["attempts"]
    metrics = run.metrics()
    return {
        "name": run.name,
        "status": attempts[-1]["status"] if attempts else "new",
        "step": metrics[-1]["step"] if metrics else 0,
        "steps": run.config.train.steps,
        "started": attempts[-1]["started"] if attempts else "",
        "env": run.config.env.name,
        "method": run.config.method.name,
        "model": run.config.policy.model,
        "seed": run.config.seed,
    }


def _evaluation(path: Path) -> dict[str, Any]:
    from agentcredit import outcomes

    evaluation = outcomes.read(path)
    summary = outcomes.summarise(evaluation.outcomes, evaluation.header.max_turns)
    return {"file": path.name, "successes": summary.k, "episodes": summary.n, "panel": evaluation.header.panel_sha256}
