"""Policies without a model: a random one to test an environment with, the expert as a ceiling, and a replay for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentcredit.envs.base import EnvClient, StepResult
from agentcredit.policies.noise import generator


class RandomPolicy:
    """Uniform over the admissible actions; where the environment lists none, ``fallback``."""

    name = "random"

    def __init__(self, fallback: str = "look around") -> None:
        self.fallback = fallback

    def act(self, task_id: str, turn: int, seen: StepResult, noise_key: tuple[str | int, ...]) -> tuple[str, str]:
        """One admissible action, drawn from the noise key."""
        if not seen.admissible:
            return "", self.fallback
        return "", seen.admissible[int(generator(noise_key).integers(len(seen.admissible)))]


class ExpertPolicy:
    """Plays the environment's expert; a task that it has no way for gets ``fallback`` until the turns run out."""

    name = "expert"

    def __init__(self, client: EnvClient, task_ids: Sequence[str], fallback: str = "look") -> None:
        episodes = client.experts(task_ids)
        self.fallback = fallback
        self._steps = {
            task_id: [(step.thought, step.action) for step in episode.steps] if episode else []
            for task_id, episode in zip(task_ids, episodes, strict=True)
        }

    def act(self, task_id: str, turn: int, seen: StepResult, noise_key: tuple[str | int, ...]) -> tuple[str, str]:
        """The expert's step of this turn."""
        steps = self._steps[task_id]
        return steps[turn] if turn < len(steps) else ("", self.fallback)


class ReplayPolicy:
    """Plays given action lists again, by task."""

    name = "replay"

    def __init__(self, actions: Mapping[str, Sequence[str]]) -> None:
        self.actions = actions

    def act(self, task_id: str, turn: int, seen: StepResult, noise_key: tuple[str | int, ...]) -> tuple[str, str]:
        """The stored action of this turn.

        Raises:
            IndexError: the episode goes on for longer than the stored one.
        """
        return "", self.actions[task_id][turn]
