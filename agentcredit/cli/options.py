"""Options that several commands share, and how flags become a configuration. Typer alone at import."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agentcredit.config_sources import Resolved

Out = Annotated[Path | None, typer.Option("--out", help="Folder of the runs; default: runs.", show_default=False)]
Config = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", metavar="FILE", help="TOML file; later files are stronger.", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any option, e.g. optim.lr=1e-4; VALUE is TOML.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name, its beginning, a path, or `latest`.")]

FLAGS = {
    "env": "env.name",
    "method": "method.name",
    "base": "method.base",
    "model": "policy.model",
    "seed": "seed",
    "steps": "train.steps",
    "name": "name",
    "out": "out",
}
"""Named flags and the keys that they set."""


def resolved(files: Sequence[Path] | None, sets: Sequence[str] | None, **flags: Any) -> Resolved:
    """The configuration of this command line and the process's variables; a flag that is None was not given."""
    from agentcredit.config_sources import resolve

    given = {FLAGS[name]: (value, f"--{name}") for name, value in flags.items() if value is not None}
    return resolve(files or (), os.environ, sets or (), given)


def out_folder(out: Path | None) -> Path:
    """Where to look for runs: ``--out``, else ``AGENTCREDIT_OUT``, else the default."""
    return resolved(None, None, out=out).config.out


def print_json(value: Any) -> None:
    """Prints JSON on stdout."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def say(text: str) -> None:
    """Prints a message on stderr."""
    typer.echo(text, err=True)
