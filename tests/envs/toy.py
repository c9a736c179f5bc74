"""A tiny deterministic text environment for the tests of the pool, with faults on demand.

A corridor of five places with a key at one end and a locked chest at the other. Loaded in the worker by this file's path.

Faults: ``options["faults"]`` is a folder; before each step the environment looks there for a file named after a fault
(``die``, ``hang``, ``garbage``, ``raise``, ``sleep``) and, if it could delete it, has that fault: each file works exactly once over
all workers. The actions of the same names, with a ``!``, have their fault every time.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agentcredit.envs.base import EnvSpec, ExpertEpisode, ExpertStep, StepResult, TaskInfo

PLACES = 5
SPLITS = {"train": 6, "dev": 3}
FAULTS = ("die", "hang", "garbage", "raise", "sleep")


def make(options: dict[str, Any]) -> Corridor:
    """The factory."""
    if options.get("broken"):
        raise ValueError("this corridor has no walls")
    return Corridor(options)


class Corridor:
    """Walk to the key, take it, walk to the chest, open it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.markov = bool(options.get("markov"))
        self.task = ""
        print("a library's chatter on stdout")
        if seconds := options.get("child"):
            subprocess.Popen(["sleep", str(seconds)])  # as a simulator's JVM: not of our making, not ending by itself

    def spec(self) -> EnvSpec:
        return EnvSpec(
            name="toy",
            version="1",
            package="toy 1.0",
            deterministic=bool(self.options.get("deterministic", True)),
            markov=self.markov,
            default_max_turns=20,
            default_layout="dialogue",
            instructions="Open the chest.",
            success_rule="the chest is open",
            splits=SPLITS,
            data_source="toy",
            official=False,
            instances_per_process=int(self.options.get("per_process", 3)),
            task_types=("key", "far key"),
        )

    def tasks(self, split: str) -> list[TaskInfo]:
        return [
            TaskInfo(
                id=f"{split}/{n}",
                type="key" if n % 2 == 0 else "far key",
                goal="open the chest",
                content_hash=hashlib.sha256(f"corridor {split} {n}".encode()).hexdigest()[:16],
            )
            for n in range(SPLITS[split])
        ]

    def reset(self, task_id: str, seed: int) -> StepResult:
        split, _, number = task_id.partition("/")
        if split not in SPLITS or not number.isdigit() or int(number) >= SPLITS[split]:
            raise KeyError(task_id)
        self.task, self.seed = task_id, seed
        self.place, self.has_key, self.open, self.steps = int(number) % PLACES, False, False, 0
        self._log("reset")
        return self._result(f"You are at place {self.place}.", 0.0, True)

    def step(self, action: str) -> StepResult:
        self._fault(action)
        self._log(action)
        self.steps += 1
        before = (self.place, self.has_key, self.open)
        if action == "left":
            self.place = max(self.place - 1, 0)
        elif action == "right":
            self.place = min(self.place + 1, PLACES - 1)
        elif action == "take" and self.place == 0:
            self.has_key = True
        elif action == "open" and self.place == PLACES - 1 and self.has_key:
            self.open = True
        changed = before != (self.place, self.has_key, self.open)
        text = f"You are at place {self.place}." if changed else "Nothing happens."
        if not self.markov:
            text += f" Step {self.steps}, seed {self.seed}."
        if self.options.get("random"):
            text += f" {os.urandom(4).hex()}"
        return self._result(text, float(self.open and not before[2]), changed)

    def expert(self, task_id: str) -> ExpertEpisode:
        results = [self.reset(task_id, 0)]
        plan = ["left"] * self.place + ["take"] + ["right"] * (PLACES - 1) + ["open"]
        results += [self.step(action) for action in plan]
        return ExpertEpisode(task_id, [ExpertStep(f"I {action}", action) for action in plan], results)

    def close(self) -> None:
        self._log("close")

    def _result(self, text: str, reward: float, valid: bool) -> StepResult:
        state = f"{self.place}{self.has_key:d}{self.open:d}"
        return StepResult(
            observation=text,
            reward=reward,
            done=self.open,
            score=float(self.open),
            success=self.open,
            valid=valid,
            admissible=self._admissible(),
            state_key=f"{self.task} {state}",
            lifted_key=state,
            full_state=state if self.markov else None,
        )

    def _admissible(self) -> list[str]:
        possible = {
            "left": self.place > 0,
            "open": self.place == PLACES - 1 and self.has_key and not self.open,
            "right": self.place < PLACES - 1,
            "take": self.place == 0 and not self.has_key,
        }
        return [action for action, can in possible.items() if can]

    def _log(self, what: str) -> None:
        """What was really simulated, for tests that count it."""
        if path := self.options.get("journal"):
            with Path(path).open("a") as journal:
                journal.write(f"{os.getpid()} {id(self)} {self.task} {what}\n")

    def _fault(self, action: str) -> None:
        folder = self.options.get("faults")
        for fault in FAULTS:
            if action == f"{fault}!" or (folder and _consume(Path(folder) / fault)):
                print(f"about to {fault}", file=sys.stderr, flush=True)
                if fault == "die":
                    os._exit(9)
                elif fault == "hang":
                    time.sleep(3600)
                elif fault == "sleep":
                    time.sleep(0.3)
                elif fault == "garbage":
                    _answer_pipe_write(b"!! not json\n")
                else:
                    raise RuntimeError("the floor gave way")


def _consume(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _answer_pipe_write(data: bytes) -> None:
    """Writes on the private pipe itself, which no library could do by accident."""
    for descriptor in range(3, 32):
        try:
            target = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        except OSError:
            continue
        if target.startswith("pipe:"):
            try:
                os.write(descriptor, data)
            except OSError:
                continue  # the reading end of another pipe
            return
