"""``agentcredit train``: begin or continue a run, or say what it would do."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentcredit.cli.options import AsJson, Config, Out, Sets, print_json, resolved, say
from agentcredit.errors import AgentCreditError, Interrupted, MissingError

if TYPE_CHECKING:
    from agentcredit.config_sources import Resolved
    from agentcredit.rundir import RunDir


def train(
    method: Annotated[str | None, typer.Option(help="Method, or several joined by +: see `methods list`.")] = None,
    env: Annotated[str | None, typer.Option(help="Environment: see `envs list`.")] = None,
    model: Annotated[str | None, typer.Option(help="tiny, smollm2, a folder, or a hub id.")] = None,
    base: Annotated[str | None, typer.Option(help="Group estimator below a shaper: grpo, rloo, gigpo.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the same seed pairs runs of two methods.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    name: Annotated[str | None, typer.Option(help="The run's folder below --out; default: from its settings.")] = None,
    config: Config = None,
    sets: Sets = None,
    out: Out = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved TOML, the plan and what is missing; train nothing.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Put the run's old folder aside and start over.")] = False,
    fork: Annotated[str, typer.Option(help="Continue the run's checkpoints as a new run of this name.")] = "",
    as_json: AsJson = False,
) -> None:
    """Train a policy; the same command again continues the run.

    Settings come from, weakest first: defaults, the environment's and model's defaults, -c files in order,
    AGENTCREDIT_* variables (AGENTCREDIT_OPTIM__LR is optim.lr), --set and the other flags.
    """
    from agentcredit.plan import check_names

    settings = resolved(
        config, sets, method=method, env=env, model=model, base=base, seed=seed, steps=steps, name=name, out=out
    )
    label = check_names(settings.config)
    if dry_run:
        _dry_run(settings, label, as_json)
        return
    _train(settings, fresh, fork, as_json)


def _dry_run(settings: Resolved, label: str, as_json: bool) -> None:
    """Prints a TOML file that ``-c`` takes, with the plan as comments; exit code 3 when something must be brought first."""
    from agentcredit.config_toml import to_toml
    from agentcredit.plan import lacks, plan
    from agentcredit.rundir import checked_name, default_name

    config = settings.config
    planned, lacking = plan(config), lacks(config)
    folder = config.out / checked_name(config.name or default_name(config))
    if as_json:
        print_json(
            {
                "run": str(folder),
                "continues": (folder / "config.toml").exists(),
                "method": label,
                "fingerprint": config.fingerprint(),
                "config": config.model_dump(mode="json"),
                "origins": dict(settings.origins),
                "plan": asdict(planned),
                "missing": [asdict(lack) for lack in lacking],
            }
        )
    else:
        typer.echo(to_toml(config, settings.origins))
        for line in _plan_lines(settings, label, folder):
            typer.echo(f"# {line}")
    if any(lack.blocks for lack in lacking):
        raise MissingError(f"Missing: {' '.join(lack.what for lack in lacking if lack.blocks)}")


def _plan_lines(settings: Resolved, label: str, folder: Path) -> list[str]:
    from agentcredit.plan import lacks, plan

    config = settings.config
    planned = plan(config)
    lines = [
        f"run        {folder}{' (continues)' if (folder / 'config.toml').exists() else ''}",
        f"method     {label}",
    ]
    if planned.warm_start_episodes:
        lines.append(f"warm start {planned.warm_start_episodes} expert episodes, unless it is cached")
    lines.append(f"training   {planned.episodes} episodes, at most {planned.tokens} sampled tokens")
    steps = planned.eval_steps
    moments = (
        f"at steps {', '.join(map(str, steps))}" if len(steps) <= 8 else f"at {len(steps)} steps, 0 to {steps[-1]}"
    )
    if planned.eval_episodes is None:
        lines.append(f"evaluation the whole of {config.env.dev_split or 'the dev split'} {moments}")
    else:
        lines.append(
            f"evaluation {planned.eval_episodes} episodes ({moments}), at most {planned.eval_tokens} sampled tokens"
        )
    lines += [f"{'missing   ' if lack.blocks else 'to come   '} {lack.what}" for lack in lacks(config)]
    return lines


def _train(settings: Resolved, fresh: bool, fork: str, as_json: bool) -> None:
    from agentcredit.cli.display import display
    from agentcredit.cli.logs import logging_to
    from agentcredit.envs.setup import ensure
    from agentcredit.plan import lacks
    from agentcredit.rundir import RunDir

    blocking = [lack.what for lack in lacks(settings.config) if lack.blocks]
    if blocking:
        raise MissingError(f"Missing: {' '.join(blocking)}")
    ensure(settings.config.env.name, say)
    with RunDir.open(settings.config, origins=settings.origins, fresh=fresh, fork=fork) as run:
        say(f"Run {run.path}, attempt {run.attempt}")
        with (
            logging_to(run.log_path),
            _terminable(),
            _attempt(run),
            contextlib.closing(display()) as shown,
        ):
            from agentcredit.training.loop import train as loop

            loop(run.config, run, shown)
        metrics = run.metrics()
        if as_json:
            print_json({"run": str(run.path), "attempt": run.attempt, "metrics": metrics[-1] if metrics else {}})
        else:
            typer.echo(run.path)


@contextlib.contextmanager
def _attempt(run: RunDir) -> Iterator[None]:
    """Writes down how the attempt ended."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt | Interrupted)
        with contextlib.suppress(AgentCreditError):  # a full disk: the first error is the one to tell
            run.finish("interrupted" if interrupted else "failed")
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"Interrupted; the same command again continues {run.path}.") from error
        raise
    run.finish("finished")


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM (a batch system's warning) ends the run as Ctrl-C does: in order, to be continued."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
