"""What the policy is told, in words: the system text, the task, each observation, in both layouts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentcredit.envs.base import EnvSpec, StepResult

ANSWER_FORMAT = (
    "Answer each time with your reasoning between <think> and </think>, "
    "then exactly one action between <action> and </action>."
)
"""The answer's form, the one of the verl-agent family."""


@dataclass(frozen=True)
class Prompts:
    """Builds the texts of one environment's conversations.

    ``style``           "full" states role, action grammar and answer form; "terse" leaves them to the model's training.
    ``show_admissible`` lists the admissible actions under each observation.
    ``history``         window layout: how many past (observation, action) pairs are shown.
    """

    spec: EnvSpec
    style: Literal["full", "terse"]
    show_admissible: bool = False
    history: int = 2

    def system(self) -> str:
        """The system text; empty in the terse style."""
        return f"{self.spec.instructions}\n{ANSWER_FORMAT}" if self.style == "full" else ""

    def first(self, goal: str, result: StepResult) -> str:
        """Dialogue layout: the first message, with the task."""
        return self._task(goal) + self.observation(result)

    def observation(self, result: StepResult) -> str:
        """Dialogue layout: a later message."""
        return result.observation + self._admissible(result)

    def window(self, goal: str, past: Sequence[tuple[str, str]], result: StepResult) -> str:
        """Window layout: the whole message of one turn.

        ``past`` holds all earlier (observation, action) pairs, oldest first; only the last ``history`` are shown.
        """
        shown = past[max(0, len(past) - self.history) :] if self.history else []
        lines = [self._task(goal)]
        if shown:
            lines.append(f"You have taken {len(past)} actions; the last {len(shown)}:\n")
            first = len(past) - len(shown) + 1
            lines += [f"[{first + k}] {observation}\n> {action}\n" for k, (observation, action) in enumerate(shown)]
        lines.append(f"Now: {result.observation}")
        return "".join(lines) + self._admissible(result)

    def hash(self) -> str:
        """Digest of every text that does not depend on the task; changes when the wording changes."""
        probe = StepResult("O", admissible=["a", "b"])
        text = "\x00".join([self.system(), self.first("G", probe), self.window("G", [("o", "a")] * 3, probe)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _task(self, goal: str) -> str:
        return f"Task: {goal}\n" if goal else ""

    def _admissible(self, result: StepResult) -> str:
        if not self.show_admissible or result.admissible is None:
            return ""
        return "\nAdmissible actions: " + "; ".join(result.admissible)
