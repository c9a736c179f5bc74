"""One worker process as the program holds it: started, asked one thing at a time, killed with all its children.

A :class:`WorkerProcess` is used by one thread; only :meth:`WorkerProcess.kill` may be called from another, to break off
a call that is under way.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from agentcredit.envs import wire

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parent.parent
KEPT_LINES = 60
LONGEST_LINE = 64 * 2**20


@dataclass(frozen=True)
class WorkerCommand:
    """How a worker is started.

    ``factory``  ``module:function`` or ``/path/to/file.py:function``; the function takes the options.
    ``variables`` environment variables on top of the program's own.
    """

    name: str
    python: str
    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


class WorkerLost(Exception):
    """The worker died, hung or printed garbage; it has been killed. ``detail`` holds its last lines on stderr."""

    def __init__(self, kind: Literal["env_timeout", "env_error"], message: str, detail: str) -> None:
        super().__init__(message)
        self.kind: Literal["env_timeout", "env_error"] = kind
        self.detail = detail


class RemoteError(Exception):
    """The environment raised an exception; the worker is alive. ``detail`` is the exception's traceback."""

    def __init__(self, type_name: str, message: str, detail: str) -> None:
        super().__init__(f"{type_name}: {message}")
        self.type_name = type_name
        self.message = message
        self.detail = detail


class WorkerProcess:
    """A worker of an environment, its pipe and its stderr.

    Args:
        command: how it is started.
        number: its place in the pool, named in messages and in the log.
        log_path: file that receives its stderr, each line marked with the worker's name; None: only the last lines are kept.
    """

    def __init__(self, command: WorkerCommand, number: int, log_path: Path | None) -> None:
        self.label = f"{command.name}-{number}"
        self._command = command
        self._last_id = 0
        self._buffer = bytearray()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._ended = False
        self._log: IO[bytes] | None = None
        if log_path is not None:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            self._log = log_path.open("ab", buffering=0)  # appended line by line: several workers share the file
        self._process = subprocess.Popen(
            # -P and -s: neither the current folder nor the user's packages reach the environment's interpreter.
            [command.python, "-P", "-s", "-c", wire.BOOTSTRAP, str(PACKAGE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_variables(command.variables),
            start_new_session=True,
            bufsize=0,
        )
        self._reader = threading.Thread(target=self._keep_stderr, name=f"{self.label}-stderr", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The worker's process id, which is its process group too."""
        return self._process.pid

    def start(self, timeout: float) -> dict[str, Any]:
        """Makes the first instance. Returns ``pid``, ``python``, ``source`` (the adapter's digest) and ``spec``.

        Raises:
            WorkerLost: it did not come up, or it speaks another version of the protocol.
            RemoteError: the environment could not be imported or made.
        """
        hello = self.call("start", timeout, factory=self._command.factory, options=dict(self._command.options))
        if not isinstance(hello, dict) or hello.get("protocol") != wire.PROTOCOL:
            spoken = hello.get("protocol") if isinstance(hello, dict) else hello
            raise self._lost("env_error", f"speaks protocol {spoken!r}, not {wire.PROTOCOL}")
        return hello

    def call(self, op: str, timeout: float, **arguments: Any) -> Any:
        """Asks one thing and waits for the answer, at most ``timeout`` seconds.

        Raises:
            WorkerLost: the worker died, took too long or answered garbage; it is dead now.
            RemoteError: the environment raised an exception.
        """
        self._last_id += 1
        deadline = time.monotonic() + timeout
        try:
            self._send(wire.encode({"id": self._last_id, "op": op, **arguments}))
        except OSError:
            raise self._died(op) from None
        while True:
            line = self._read_line(op, timeout, deadline)
            try:
                answer = wire.decode(line)
                number = answer["id"]
            except (ValueError, KeyError):
                raise self._lost("env_error", f"printed garbage on its pipe in {op}: {line[:120]!r}") from None
            if isinstance(number, int) and number < self._last_id:
                continue  # a late answer to a request that was given up
            if number != self._last_id:
                raise self._lost("env_error", f"answered request {number!r} where {self._last_id} was asked ({op})")
            if "error" in answer:
                error = answer["error"]
                raise RemoteError(error["type"], error["message"], error["traceback"])
            return answer.get("ok")

    def kill(self) -> None:
        """Ends the worker and every process of its group now. Safe to call twice and from any thread."""
        if self._ended:
            return
        try:
            # Until it is ended here its guard lives in the group, so the number cannot mean another group.
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()

    def close(self, grace: float = 3.0) -> None:
        """Lets the worker close its environments, for at most ``grace`` seconds, then ends its group."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.close()
            self._process.wait(grace)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.kill()
        self._ended = True
        self._process.wait()
        self._reader.join(1.0)
        stdout.close()

    def stderr_tail(self) -> str:
        """The last lines that the worker wrote on stderr."""
        return "\n".join(self._lines)

    def _send(self, data: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        view = memoryview(data)
        while view:
            view = view[os.write(stdin.fileno(), view) :]

    def _read_line(self, op: str, timeout: float, deadline: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        ready = select.poll()
        ready.register(stdout, select.POLLIN)
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > LONGEST_LINE:
                raise self._lost("env_error", f"printed {len(self._buffer)} bytes without a line's end in {op}")
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._lost("env_timeout", f"did not answer {op} within {timeout:g} s")
            if ready.poll(min(left, 1.0) * 1000):
                chunk = os.read(stdout.fileno(), 2**20)
                if not chunk:
                    raise self._died(op)
                self._buffer += chunk
            elif self._process.poll() is not None:
                raise self._died(op)  # a forked child still holds the pipe
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _died(self, op: str) -> WorkerLost:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return self._lost("env_error", f"closed its pipe in {op}")
        return self._lost("env_error", f"died in {op} ({_exit_text(code)})")

    def _lost(self, kind: Literal["env_timeout", "env_error"], what: str) -> WorkerLost:
        self.close(grace=0.0)
        return WorkerLost(kind, f"worker {self.label} {what}", self.stderr_tail())

    def _keep_stderr(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with stream:
            for line in _lines(stream):
                self._lines.append(line.decode("utf-8", "replace"))
                self._append(f"[{self.label}] ".encode() + line + b"\n")
        if self._log is not None:
            self._log.close()

    def _append(self, line: bytes) -> None:
        if self._log is not None:
            try:
                self._log.write(line)
            except OSError as error:  # a full disk must not stop the pipe, and so the worker
                log.warning("The stderr of %s is no longer written to %s: %s.", self.label, self._log.name, error)
                self._log = None


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines of an unbuffered stream, as they come."""
    rest = b""
    while chunk := stream.read(2**16):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
        if len(rest) > 2**16:  # a progress bar that never ends its line
            yield rest
            rest = b""
    if rest:
        yield rest


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _variables(extra: Mapping[str, str]) -> dict[str, str]:
    """The program's variables without those that would lead the worker to the program's own packages."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    # A fixed hash seed makes the order of sets, and so some simulators' texts, the same in every worker.
    return kept | {"PYTHONHASHSEED": "0", "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1", **extra}
