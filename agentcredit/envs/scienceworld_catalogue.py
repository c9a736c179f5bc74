"""What ScienceWorld holds: its tasks, their variations' goals and splits, and its action templates (worker side).

Read from the installed package once, in 10 to 20 s, and kept on disk by the package's version and its JAR's SHA-256.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from agentcredit.envs.base import TaskInfo
from agentcredit.envs.scienceworld_jvm import Simulator

FORMAT = 1
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Variations:
    """One of the thirty tasks: the goal of each of its variations, and the variations of each split."""

    goals: list[str]
    splits: dict[str, list[int]]


@dataclass(frozen=True)
class Catalogue:
    """The whole benchmark, as installed.

    ``actions``  the action templates, e.g. ``pour OBJ in OBJ``.
    ``tasks``    by the task's name, e.g. ``boil``.
    """

    version: str
    jar_sha256: str
    actions: list[str]
    tasks: dict[str, Variations]

    def split(self, split: str) -> list[TaskInfo]:
        """The tasks of a split, sorted by id. Raises KeyError for an unknown split."""
        if split not in SPLITS:
            raise KeyError(split)
        found = [
            TaskInfo(f"{name}/{n:04d}", name, task.goals[n], self._hash(name, n, task.goals[n]))
            for name, task in self.tasks.items()
            for n in task.splits[split]
        ]
        return sorted(found, key=lambda task: task.id)

    def find(self, task_id: str) -> tuple[str, int]:
        """The name and the variation of a task id such as ``boil/0012``. Raises KeyError for an unknown one."""
        name, _, number = task_id.partition("/")
        if name not in self.tasks or not (number.isascii() and number.isdigit() and len(number) == 4):
            raise KeyError(task_id)
        if int(number) >= len(self.tasks[name].goals):
            raise KeyError(task_id)
        return name, int(number)

    def _hash(self, name: str, variation: int, goal: str) -> str:
        # A variation is made by the code in the JAR from its number alone, so these are all that defines it.
        content = "\n".join([self.version, self.jar_sha256, name, str(variation), goal])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def load(home: str) -> Catalogue:
    """The catalogue of the installed package: from below ``home``, or read from the package and kept there."""
    from scienceworld.constants import JAR_PATH  # pyright: ignore[reportMissingImports]

    version = metadata.version("scienceworld")
    jar = hashlib.sha256(Path(JAR_PATH).read_bytes()).hexdigest()
    folder = Path(home) / "data" / "scienceworld"
    path = folder / f"catalogue-v{FORMAT}-{version}-{jar[:12]}.json"
    if (kept := _read(path)) is not None:
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers that start together one reads, the others wait
        if (kept := _read(path)) is not None:
            return kept
        made = _from_package(version, jar)
        _write(path, made)
    return made


def _from_package(version: str, jar: str) -> Catalogue:
    simulator = Simulator()
    try:
        tasks = {name: _variations(simulator, name) for name in simulator.server.getTaskNames()}
        return Catalogue(version, jar, list(simulator.server.getPossibleActions()), tasks)
    finally:
        simulator.close()


def _variations(simulator: Simulator, name: str) -> Variations:
    """Goals without loading each variation, which would take some fifteen minutes for all 7,207.

    Loading seeds Scala's random numbers with the variation's number just before it makes the goals; so does this. The
    variation that is loaded anyway, to ask for the splits, is compared.

    Raises:
        RuntimeError: the package's way of making goals has changed.
    """
    server = simulator.server
    n = server.getTaskMaxVariations(name)
    random = getattr(getattr(simulator.java.scala.util, "Random$"), "MODULE$")
    maker = server.taskMaker().getTask(name).get()
    goals = []
    for variation in range(n):
        random.setSeed(variation)
        goals.append(maker.setupGoals(variation).description().strip())
    simulator.load(name, n - 1)
    if server.getTaskDescription() != goals[-1]:
        raise RuntimeError(f"ScienceWorld states the goal of {name} {n - 1} otherwise when it is loaded")
    splits = (server.getVariationsTrain(), server.getVariationsDev(), server.getVariationsTest())
    return Variations(goals, {split: list(numbers) for split, numbers in zip(SPLITS, splits, strict=True)})


def _read(path: Path) -> Catalogue | None:
    """The kept catalogue; None when there is none or it is damaged, and is to be made again."""
    try:
        plain = json.loads(path.read_text())
        tasks = {name: Variations(**task) for name, task in plain.pop("tasks").items()}
        return Catalogue(**plain, tasks=tasks)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, catalogue: Catalogue) -> None:
    plain = {
        "version": catalogue.version,
        "jar_sha256": catalogue.jar_sha256,
        "actions": catalogue.actions,
        "tasks": {name: vars(task) for name, task in catalogue.tasks.items()},
    }
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as stream:
        json.dump(plain, stream)
        stream.flush()
        os.fsync(stream.fileno())
    Path(stream.name).replace(path)
