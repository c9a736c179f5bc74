"""How long the command takes before it does anything, as ratios to bare Python in the same minute.

    python benchmarks/bench_cli.py

Processor seconds (user and system), the best of seven runs each, taken in turns: the clock would measure the machine's other work.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 7
AGENTCREDIT = ["-m", "agentcredit.cli.main"]
CASES = {
    "python -c pass": ["-c", "pass"],
    "import typer": ["-c", "import typer"],
    "agentcredit --help": [*AGENTCREDIT, "--help"],
    "agentcredit train --help": [*AGENTCREDIT, "train", "--help"],
    "agentcredit train --dry-run": [*AGENTCREDIT, "train", "--dry-run"],
    "import torch (a peer's --help)": ["-c", "import torch"],
}


def seconds(arguments: list[str], folder: Path) -> float:
    process = subprocess.Popen([sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    best = dict.fromkeys(CASES, float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name, arguments in CASES.items():
                best[name] = min(best[name], seconds(arguments, Path(folder)))
    bare = best["python -c pass"]
    width = max(map(len, CASES))
    for name, value in best.items():
        print(f"{name:<{width}}  {value:6.3f} s  {value / bare:6.1f} × bare Python")


if __name__ == "__main__":
    main()
