"""Commands side by side on this machine: a bounded number at a time, their lines passed on, all ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

GRACE_SECONDS = 60.0
"""How long an interrupted command may take to end in order before it is killed."""


@dataclass(frozen=True)
class Command:
    """A command line under a short name."""

    name: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``last_line`` is the last that it said on stderr, which names the error if it failed."""

    command: Command
    code: int
    last_line: str


def run_all(commands: Sequence[Command], jobs: int, heard: Callable[[Command, str], None]) -> list[Ended]:
    """Runs all commands, ``jobs`` at a time, in order; a failure does not stop the others.

    Each gets one thread for its arithmetic (``OMP_NUM_THREADS``, unless set): small models on shared cores collapse with
    more. On Ctrl-C every running command is interrupted and waited for, so that it can end in order.

    Args:
        commands: what to run.
        jobs: how many at a time.
        heard: is given each line of stderr as it comes, from another thread.

    Returns:
        How each ended, in the order of ``commands``.
    """
    running: set[subprocess.Popen[str]] = set()
    lock = threading.Lock()
    stopping = threading.Event()
    environment = {"OMP_NUM_THREADS": "1", **os.environ}

    def run(command: Command) -> Ended:
        with lock:
            if stopping.is_set():
                return Ended(command, -signal.SIGINT, "not started")
            # Its own session: the terminal's Ctrl-C reaches this process alone, which passes it on once.
            process = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,
            )
            running.add(process)
        last = ""
        assert process.stderr is not None
        for line in process.stderr:
            if stripped := line.rstrip():
                last = stripped
                heard(command, stripped)
        code = process.wait()
        with lock:
            running.discard(process)
        return Ended(command, code, last)

    ended: dict[Command, Ended] = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = [pool.submit(run, command) for command in commands]
        try:
            for future in as_completed(futures):
                result = future.result()
                ended[result.command] = result
        except BaseException:
            stopping.set()
            with lock:
                left = list(running)
            _stop(left)
            raise
    return [ended[command] for command in commands]


def _stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
