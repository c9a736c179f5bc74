"""The program's side of an environment: episodes over a pool of workers, behind a transition cache."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from agentcredit.envs.base import EnvFailure, EnvSpec, ExpertEpisode, StepResult, TaskInfo
from agentcredit.envs.pool import Pool, Track
from agentcredit.envs.process import RemoteError
from agentcredit.envs.trail import Trail
from agentcredit.envs.wire import expert_from, task_from
from agentcredit.errors import MissingError, UsageError, nearest


class PoolClient:
    """An ``EnvClient``. Made by ``registry.connect``; nothing is started before the first question."""

    def __init__(self, name: str, pool: Pool) -> None:
        self.name = name
        self._pool = pool
        self._tasks: dict[str, list[TaskInfo]] = {}
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def spec(self) -> EnvSpec:
        """What the environment is.

        Raises:
            MissingError: the environment does not start, with what it said.
        """
        try:
            return self._pool.start()
        except EnvFailure as failure:
            raise MissingError(f"The environment '{self.name}' does not start: {failure}") from failure

    @property
    def capacity(self) -> int:
        """Live episodes that need no replay. An environment that is not deterministic cannot have more at a time."""
        self.spec()
        return self._pool.capacity

    def tasks(self, split: str) -> list[TaskInfo]:
        """All tasks of a split, sorted by id. Raises ``UsageError`` for an unknown split."""
        if split not in self._tasks:
            known = self.spec().splits
            if split not in known:
                raise UsageError(f"Environment '{self.name}' has no split '{split}'.{nearest(split, known)}")
            try:
                self._tasks[split] = [task_from(plain) for plain in self._pool.tasks(split).result()]
            except (EnvFailure, RemoteError) as failure:
                raise MissingError(f"The tasks of '{self.name}' ({split}) cannot be listed: {failure}") from failure
        return list(self._tasks[split])

    def open(self, task_id: str, seed: int = 0) -> PoolEpisode:
        """A new episode; no I/O until its reset."""
        return PoolEpisode(self, self._pool, task_id, seed)

    def experts(self, task_ids: Sequence[str]) -> list[ExpertEpisode | None]:
        """The expert's episodes of these tasks, in order; computed in parallel by the workers.

        Raises:
            UsageError: a task is not known.
            EnvFailure: a worker failed more often than it may.
        """
        futures = [self._pool.expert(task_id) for task_id in task_ids]
        try:
            return [expert_from(future.result()) for future in futures]
        except RemoteError as error:
            raise UsageError(f"Environment '{self.name}' has no such task: {error.message}") from error

    def stats(self) -> dict[str, float]:
        """Counters since the start."""
        return {name: float(value) for name, value in (self._counts + self._pool.counts).items()}

    def close(self) -> None:
        """Ends every worker process; safe to call twice."""
        self._pool.close()

    def count(self, name: str) -> None:
        """One more of what :meth:`stats` reports."""
        with self._lock:
            self._counts[name] += 1


class PoolEpisode:
    """An ``EnvEpisode``: a trail, and a slot of the pool while it needs one."""

    def __init__(self, client: PoolClient, pool: Pool, task_id: str, seed: int) -> None:
        self._client = client
        self._pool = pool
        self._track = Track(Trail(task_id, seed, erase_loops=False))

    def reset(self) -> Future[StepResult]:
        """The initial state of the task."""
        self._track.trail.erase_loops = self._client.spec().markov
        self._client.count("resets")
        return self._ask(None)

    def step(self, action: str) -> Future[StepResult]:
        """Plays one action; only after the previous future is done."""
        self._client.count("steps")
        return self._ask(action)

    def close(self) -> None:
        """Gives its slot back; safe to call twice."""
        self._pool.release(self._track)

    def _ask(self, action: str | None) -> Future[StepResult]:
        answer: Future[StepResult] = Future()

        def finish(played: Future[Any]) -> None:
            if played.cancelled():
                answer.cancel()
            elif isinstance(error := played.exception(), RemoteError):
                answer.set_exception(UsageError(f"{self._client.name} has no such task: {error.message}"))
            elif error is not None:
                answer.set_exception(error)
            else:
                result = played.result()
                if action is None:
                    self._track.trail.start(result)
                else:
                    self._track.trail.push(action, result)
                answer.set_result(result)

        self._pool.play(self._track, action).add_done_callback(finish)
        return answer
