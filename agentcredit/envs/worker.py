"""The worker: runs in the environment's interpreter and answers requests from the program (see wire.py).

It needs the standard library and the environment's own package. File descriptor 1 is duplicated for the answers and then
pointed at stderr, so nothing that a library prints can corrupt them; stdin is moved away likewise.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import platform
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from agentcredit.envs.base import Environment, to_plain
from agentcredit.envs.wire import PROTOCOL, decode, encode

GRACE = 2.0
"""Seconds between the end of the program's side of the pipe and the end of everything on this side."""


def main() -> None:
    """Serves requests until stdin ends."""
    _guard()
    answers = os.dup(1)
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    worker = Worker()
    for line in requests:
        _write_all(answers, encode(worker.answer(decode(line))))
    worker.close()


class Worker:
    """The live environments of one process, and the operations on them."""

    def __init__(self) -> None:
        self._make: Callable[[], Environment] | None = None
        self._instances: dict[int, Environment] = {}
        self._operations = {
            "start": self._start,
            "tasks": lambda instance, split: [to_plain(task) for task in self._instance(instance).tasks(split)],
            "reset": lambda instance, task, seed: to_plain(self._instance(instance).reset(task, seed)),
            "step": lambda instance, action: to_plain(self._instance(instance).step(action)),
            "expert": self._expert,
            "close": self._close,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request. An exception of the environment is an answer too; the worker goes on."""
        number, operation = request.pop("id"), request.pop("op")
        try:
            return {"id": number, "ok": self._operations[operation](**request)}
        except (Exception, SystemExit) as error:
            text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
            return {
                "id": number,
                "error": {"type": type(error).__name__, "message": text, "traceback": traceback.format_exc()},
            }

    def close(self) -> None:
        """Closes every instance; one that fails to close does not keep the others open."""
        for instance in list(self._instances):
            try:
                self._close(instance)
            except Exception:
                traceback.print_exc()

    def _start(self, factory: str, options: dict[str, Any]) -> dict[str, Any]:
        module_name, _, function = factory.rpartition(":")
        module = load_module(module_name)
        make = getattr(module, function)
        self._make = lambda: make(dict(options))
        return {
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "python": platform.python_version(),
            "source": source_digest(module),
            "spec": to_plain(self._instance(0).spec()),
        }

    def _instance(self, number: int) -> Environment:
        if number not in self._instances:
            if self._make is None:
                raise RuntimeError("the first request must be 'start'")
            self._instances[number] = self._make()
        return self._instances[number]

    def _expert(self, instance: int, task: str) -> Any:
        episode = self._instance(instance).expert(task)
        return None if episode is None else to_plain(episode)

    def _close(self, instance: int) -> None:
        environment = self._instances.pop(instance, None)
        if environment is not None:
            environment.close()


def load_module(name: str) -> ModuleType:
    """A module by its dotted name, or by the path of its file (``.../my_env.py``)."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name)
    unique = f"_environment_{path.stem}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    spec.loader.exec_module(module)
    return module


def source_digest(module: ModuleType) -> str:
    """Digest of an adapter's source: its file and its siblings ``<name>_*.py``; "" when it has no file.

    Cached transitions depend on it, so that a change of the adapter never meets results of the old one.
    """
    if not module.__file__:
        return ""
    file = Path(module.__file__)
    digest = hashlib.sha256()
    for part in [file, *sorted(file.parent.glob(f"{file.stem}_*.py"))]:
        digest.update(part.read_bytes())
    return digest.hexdigest()[:16]


def _guard() -> None:
    """Forks a small process that ends this process's group once the program has gone.

    A worker that computes, hangs, or holds a JVM cannot be trusted to notice the end of its stdin; the guard waits for
    just that. It was forked before anything was imported or opened, so it shares nothing but the pipe.
    """
    if os.fork():
        return
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    waiting = select.poll()
    waiting.register(0, 0)  # no events asked: only the hang-up of the writing end is reported
    while not any(event & (select.POLLHUP | select.POLLERR) for _, event in waiting.poll()):
        time.sleep(0.1)
    time.sleep(GRACE)
    os.killpg(0, signal.SIGKILL)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
