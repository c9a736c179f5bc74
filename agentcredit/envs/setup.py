"""Makes an environment's own interpreter, and fetches its official data where that is asked for.

An interpreter is a virtual environment ``<home>/envs/<name>`` with the pinned packages of the registry's entry. It is built
under another name and renamed when it works, so one that is there is whole. Building needs the package registry alone
and some 100 to 300 MB; official data, which may be gigabytes from elsewhere, come only with ``official``.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from agentcredit.envs import registry
from agentcredit.errors import MissingError, UsageError
from agentcredit.files import atomic_write_json, naming
from agentcredit.home import home

log = logging.getLogger(__name__)

Say = Callable[[str], None]

MARKER = "agentcredit.json"
"""In the environment's folder: what it was made from. Another pin in the registry makes it anew."""

_SHOWN_LINES = 12


def is_ready(name: str) -> bool:
    """Whether the interpreter is there with today's pins, or another one is named by its variable.

    Raises:
        UsageError: there is no such environment.
    """
    entry = registry.entry(name)
    if os.environ.get(registry.interpreter_variable(name)):
        return True
    folder = home() / "envs" / name
    return os.access(folder / "bin" / "python", os.X_OK) and _made_from(folder) == list(entry.requirements)


def ensure(name: str, say: Say | None = None) -> Path:
    """The environment's interpreter; sets it up when it is not there, and says so first. Never fetches data.

    Raises:
        UsageError: there is no such environment.
        MissingError: it cannot be set up.
    """
    return registry.interpreter(name) if is_ready(name) else setup(name, say=say)


def setup(name: str, *, official: bool = False, say: Say | None = None) -> Path:
    """Makes the environment's interpreter and returns its path. Does nothing, at once, when it is there.

    Args:
        name: the environment, as in ``registry.names()``.
        official: also download the official data with the package's own command.
        say: receives one line per stage; the module's logger by default.

    Raises:
        UsageError: there is no such environment, or it has no official data to download.
        MissingError: pip or the download failed, with its last words and the path of the whole log.
    """
    say = say or log.info
    entry = registry.entry(name)
    if official and not entry.official_command:
        raise UsageError(f"The environment '{name}' has no official data to download: its package brings everything.")
    with _locked(name, say):
        if not is_ready(name):
            _build(entry, say)
        python = registry.interpreter(name)
        if official:
            _download(entry, python, say)
    return python


def official_folder(name: str) -> Path:
    """Where official data are looked for and downloaded to: the entry's variable, or a folder below ``home()``."""
    chosen = os.environ.get(registry.entry(name).data_variable or "-")
    return Path(chosen).expanduser() if chosen else home() / "data" / name / "official"


def _build(entry: registry.EnvEntry, say: Say) -> None:
    say(
        f"Setting up '{entry.name}' once: a virtual environment with {', '.join(entry.requirements) or 'nothing added'}."
    )
    folder = home() / "envs" / entry.name
    fresh = folder.with_name(f".{entry.name}.new")
    old = folder.with_name(f".{entry.name}.old")
    python = fresh / "bin" / "python"
    with naming(folder):
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        # This interpreter's own pip can install into another; copying one into each environment takes seconds.
        own_pip = importlib.util.find_spec("pip") is not None
        pip = [sys.executable, "-m", "pip", "--python", str(python)] if own_pip else [str(python), "-m", "pip"]
        quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
        make = [sys.executable, "-m", "venv", *(["--without-pip"] if own_pip else []), str(fresh)]
        with _log(entry.name) as stream:
            _run(make, stream, f"Python's venv module cannot make {fresh}")
            if entry.requirements:
                _run(
                    [*pip, "install", *quiet, *entry.requirements],
                    stream,
                    f"pip cannot install {' '.join(entry.requirements)}",
                )
        atomic_write_json(fresh / MARKER, {"requirements": list(entry.requirements), "python": sys.version.split()[0]})
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    say(f"'{entry.name}' is ready: {folder / 'bin' / 'python'}")


def _download(entry: registry.EnvEntry, python: Path, say: Say) -> None:
    script, *arguments = entry.official_command
    target = official_folder(entry.name)
    say(
        f"Downloading the official data of '{entry.name}' to {target} ({script}); this takes a network and may be long."
    )
    with naming(target):
        target.mkdir(parents=True, exist_ok=True)
    # The script is given to the interpreter by name: its first line still names the folder that it was built in.
    command = [str(python), str(python.parent / script), *arguments]
    with _log(entry.name) as stream:
        _run(
            command,
            stream,
            f"The official data of '{entry.name}' cannot be downloaded by {script}",
            f" Where there is no network, copy them from another machine and set {entry.data_variable} to their folder.",
            {entry.data_variable: str(target)},
        )
    say(f"The official data of '{entry.name}' are in {target}.")


def _run(
    command: Sequence[str], stream: IO[bytes], problem: str, way_out: str = "", variables: dict[str, str] | None = None
) -> None:
    """Runs a command with its output in the log. Raises MissingError with the last lines of that output."""
    start = stream.tell()
    try:
        code = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=_clean_variables() | (variables or {}),
            check=False,
        ).returncode
    except OSError as error:
        raise MissingError(f"{problem}: {error}.{way_out}") from error
    if code:
        said = Path(stream.name).read_bytes()[start:].decode("utf-8", "replace").splitlines()
        words = "\n  ".join(line for line in said if line.strip() and not line.startswith("WARNING:"))
        tail = "\n  ".join(words.split("\n  ")[-_SHOWN_LINES:])
        raise MissingError(f"{problem} (exit code {code}; all of it is in {stream.name}).{way_out} It said:\n  {tail}")


def _clean_variables() -> dict[str, str]:
    """The program's variables without those that would mix its own packages into the new interpreter."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _made_from(folder: Path) -> list[str] | None:
    try:
        return json.loads((folder / MARKER).read_text())["requirements"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def _log(name: str) -> Iterator[IO[bytes]]:
    path = home() / "logs" / f"setup-{name}.log"
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            yield stream


@contextlib.contextmanager
def _locked(name: str, say: Say) -> Iterator[None]:
    """Of several processes that set the same environment up, one works and the others wait."""
    path = home() / "envs" / f".{name}.lock"
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("w")
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process is setting '{name}' up; waiting for it.")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
