"""The command as a user meets it: a process of its own, in a folder of its own, without this machine's settings."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "agentcredit.cli.main"]


def environment(home: Path, **extra: str) -> dict[str, str]:
    """Variables of a machine that has set nothing; every environment's interpreter counts as set up."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTCREDIT_", "MLFLOW_"))}
    ready = {f"AGENTCREDIT_{name}_PYTHON": sys.executable for name in ("ALFWORLD", "SCIENCEWORLD")}
    return kept | ready | {"AGENTCREDIT_HOME": str(home / "home"), "COLUMNS": "100"} | extra


def agentcredit(*arguments: object, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=environment(cwd, **extra),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def refused(result: subprocess.CompletedProcess[str], code: int) -> str:
    """The one sentence of a command that was refused; it is on stderr, and nothing else is."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert result.returncode == code, result.stderr
    return lines[0]
