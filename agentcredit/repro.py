"""What a result depends on besides its configuration: code, packages, machine, command.

Nothing here imports torch: versions come from installed metadata, and the accelerator's facts only from a torch that the
run has loaded already. Values that look like secrets are never stored.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import agentcredit
from agentcredit.config import RunConfig

MAX_DIFF = 256 * 1024
"""Bytes of a repository's uncommitted changes that are kept; what is longer says how long it was."""

# Not `key` or `tokens` alone: state_key and max_new_tokens are ordinary options.
_SECRET = r"(?:api|access|private|auth)[_-]?key|token(?!s)|secret|passw|credential"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_SECRET_ASSIGNMENT = re.compile(rf"([\w.\-]*(?:{_SECRET})[\w\-]*)(=|\s+)(\S+)", re.IGNORECASE)
_URI_PASSWORD = re.compile(r"(://[^/@:\s]*):[^/@\s]+@")
_MASK = "***"
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONHASHSEED", "ALFWORLD_DATA", "MLFLOW_TRACKING_URI")


def collect(config: RunConfig, argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> dict:
    """The record of one attempt, as JSON values.

    ``panel`` is empty here: the evaluation fills it in (:meth:`agentcredit.rundir.RunDir.note`).
    """
    environ = os.environ if environ is None else environ
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(sys.argv if argv is None else argv),
        "agentcredit": agentcredit.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "fingerprint": config.fingerprint(),
        "seeds": {"run": config.seed, "warm_start": config.tiny.seed},
        "code": repository(Path(agentcredit.__file__).parent),
        "working_folder": repository(Path.cwd()),
        "variables": {
            name: mask(name, value)
            for name, value in sorted(environ.items())
            if name.startswith("AGENTCREDIT_") or name in _VARIABLES
        },
        "packages": packages(),
        "panel": {},
    }


def accelerator() -> dict[str, Any]:
    """Torch's build, threads and devices, if the process has loaded torch; else empty."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def packages() -> dict[str, str]:
    """Every installed distribution and its version, sorted by name."""
    found = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def repository(folder: Path) -> dict[str, Any]:
    """Commit, uncommitted changes and untracked names of the git repository around ``folder``; empty where none is."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    diff = _git(folder, "diff", "HEAD", "--no-color", "--no-ext-diff")
    status = _git(folder, "status", "--porcelain", "--untracked-files=normal")
    if len(diff) > MAX_DIFF:
        diff = f"{diff[:MAX_DIFF]}\n[cut: {len(diff)} bytes in all]"
    return {
        "commit": commit.strip(),
        "dirty": bool(status.strip()),
        "diff": diff,
        "untracked": [line[3:] for line in status.splitlines() if line.startswith("??")],
    }


def command_line(argv: Sequence[str]) -> str:
    """The command as it could be typed again, secrets masked."""
    words = [Path(argv[0]).name, *argv[1:]] if argv else []
    return mask_text(shlex.join(words))


def mask(name: str, value: str) -> str:
    """The value, unless its name says that it is a secret; passwords inside URIs go too."""
    return _MASK if _SECRET_NAME.search(name) else mask_uri(value)


def mask_uri(text: str) -> str:
    """The text with the passwords of its URIs masked."""
    return _URI_PASSWORD.sub(rf"\1:{_MASK}@", text)


def mask_text(text: str) -> str:
    """The text with assignments to secret-looking names, and passwords in URIs, masked."""
    return mask_uri(_SECRET_ASSIGNMENT.sub(rf"\1\2{_MASK}", text))


def _git(folder: Path, *arguments: str) -> str:
    """Git's answer, or nothing where git, a repository or an answer in time is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=10,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
