"""The command ``agentcredit``: its subcommands, loaded when they are asked for, and what a failure looks like."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from agentcredit import __version__
from agentcredit.errors import AgentCreditError, Interrupted

DEBUG = "AGENTCREDIT_DEBUG"

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("agentcredit.cli.train:train", "Train a policy; the same command again continues the run."),
    "eval": ("agentcredit.cli.evaluate:evaluate", "Play a split with a run's policy and store the outcomes."),
    "forecaster": ("agentcredit.cli.forecaster:forecaster", "Train the forecaster that eval --rerank acts by."),
    "compare": ("agentcredit.cli.compare:compare", "Train methods over seeds, evaluate them, print the table."),
    "report": ("agentcredit.cli.report:report", "Compare runs: success rates, intervals, paired differences."),
    "inspect": ("agentcredit.cli.inspect:inspect", "Look into a run: the reference graphs that its method keeps."),
    "credit": ("agentcredit.cli.credit:credit", "Give stored episodes the credit of any method."),
    "runs": ("agentcredit.cli.runs:app", "List, show and verify runs; open the MLflow page."),
    "methods": ("agentcredit.cli.methods:app", "List the methods, or show one with its parameters."),
    "envs": ("agentcredit.cli.envs:app", "List, set up, check and play environments."),
}
"""Name to (where its command or application is, one line of help)."""

EPILOG = """\b
Exit codes:
  0  done
  1  the run failed
  2  wrong usage: a flag, a key, a name, a combination
  3  an environment, its data, a model or a file is missing or broken
  4  interrupted; repeating the command continues
  5  comparison refused: the runs were not measured on the same thing

Data goes to stdout, progress and messages to stderr; NO_COLOR is honoured.
"""

_INTERRUPTED_BY_TYPER = 130
"""What typer returns in place of a KeyboardInterrupt."""


class LazyGroup(TyperGroup):
    """Imports a subcommand's module only to run it, so that ``--help`` costs no more than typer and rich."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}
        self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The subcommand; only its name and line of help while the help page is written."""
        if self._listing or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        return load(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help page."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def load(name: str) -> Any:
    """Imports a subcommand."""
    where, line = COMMANDS[name]
    module, _, attribute = where.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    if isinstance(target, typer.Typer):
        command = typer.main.get_group(target)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(target)
        command = typer.main.get_command(single)
    command.name = name
    command.help = command.help or line
    return command


# Plain help pages: rich's renderer alone would double the time of --help.
app = typer.Typer(cls=LazyGroup, epilog=EPILOG, invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help=f"Show tracebacks; accepted anywhere, or {DEBUG}=1.")] = False,
) -> None:
    """Train LLM agents and compare how they assign credit to the steps of a long episode."""
    if version:
        typer.echo(f"agentcredit {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit


def main() -> None:
    """Runs the command of ``sys.argv`` and exits with the documented code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit code; every failure is one sentence on stderr."""
    arguments = _take_debug(list(arguments))
    try:
        result = typer.main.get_command(app).main(arguments, prog_name="agentcredit", standalone_mode=False)
    except KeyboardInterrupt as error:
        return _fail(Interrupted("Interrupted. Repeating the command continues."), error)
    except Exception as error:
        return _report(error)
    if result == _INTERRUPTED_BY_TYPER:
        return _fail(Interrupted("Interrupted. Repeating the command continues."))
    return result if isinstance(result, int) else 0


def _take_debug(arguments: list[str]) -> list[str]:
    """``--debug`` is understood before and after a subcommand."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--debug" in arguments[:end]:
        os.environ[DEBUG] = "1"
        return [word for word in arguments[:end] if word != "--debug"] + arguments[end:]
    return arguments


def _report(error: Exception) -> int:
    if isinstance(error, AgentCreditError):
        return _fail(error, error)
    if hasattr(error, "format_message"):  # typer's own: a wrong flag, a missing argument
        return _usage(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f" ({error.filename})" if error.filename else ""
        return _fail(
            AgentCreditError(f"The disk is full{place}. Free some space and repeat the command: it continues."), error
        )
    if isinstance(error, MemoryError):
        hint = "train.tokens_per_microbatch and env.processes are what costs memory"
        return _fail(AgentCreditError(f"Out of memory; {hint}."), error)
    place = _innermost_own_line(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _fail(AgentCreditError(f"Unexpected {text}{place}. Repeat with --debug for the traceback."), error)


def _usage(error: Any) -> int:
    """A wrong command line, as a sentence with the way to the help page; a bare group prints its help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help() if context else error.format_message(), err=True)
        return 2
    path = context.command_path if context else "agentcredit"
    sentence = AgentCreditError(f"{error.format_message().rstrip('.')}. See `{path} --help`.".replace("?.", "?"))
    sentence.exit_code = error.exit_code
    return _fail(sentence, error)


def _fail(sentence: AgentCreditError, cause: BaseException | None = None) -> int:
    if cause is not None and os.environ.get(DEBUG, "") not in ("", "0"):
        traceback.print_exception(cause)
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    label = "\x1b[1;31mError:\x1b[0m" if coloured else "Error:"
    typer.echo(f"{label} {sentence}", err=True)
    return sentence.exit_code


def _innermost_own_line(error: BaseException) -> str:
    """Where in this package an unexpected error came from."""
    package = Path(__file__).parent.parent
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(package)]
    return f" at {Path(own[-1].filename).relative_to(package.parent)}:{own[-1].lineno}" if own else ""


if __name__ == "__main__":
    main()
