"""The program's side of an environment: episodes over a pool of workers, behind a transition cache."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from agentcredit.envs.base import EnvFailure, EnvSpec, ExpertEpisode, StepResult, TaskInfo
from agentcredit.envs.cache import Position, TransitionCache, digest, namespace
from agentcredit.envs.pool import Pool
from agentcredit.envs.process import RemoteError
from agentcredit.envs.slots import Track
from agentcredit.envs.store import BlobStore
from agentcredit.envs.trail import Trail
from agentcredit.envs.wire import expert_from, task_from
from agentcredit.errors import MissingError, UsageError, nearest

COUNTS = (
    "resets", "resets_simulated", "resets_replayed", "steps", "steps_simulated", "steps_replayed", "experts",
    "experts_simulated", "cache_hits", "cache_shared", "cache_misses", "restarts", "timeouts", "deaths", "exceptions",
    "failures",
)  # fmt: skip


class PoolClient:
    """An ``EnvClient``. Made by ``registry.connect``; nothing is started before the first question.

    Args:
        name: the environment's name.
        pool: its workers.
        options: what its ``make`` receives; cached results depend on them.
        store: where its transitions are kept if it is deterministic; None: nothing is remembered.
    """

    def __init__(self, name: str, pool: Pool, options: Mapping[str, Any], store: BlobStore | None = None) -> None:
        self.name = name
        self._pool = pool
        self._options = options
        self._store = store
        self._cache: TransitionCache | None = None
        self._namespace = b""
        self._tasks: dict[str, list[TaskInfo]] = {}
        self._hashes: dict[str, str] = {}
        self._under_way: dict[bytes, Future[Any]] = {}
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def spec(self) -> EnvSpec:
        """What the environment is.

        Raises:
            MissingError: the environment does not start, with what it said.
        """
        try:
            spec = self._pool.start()
        except EnvFailure as failure:
            raise MissingError(f"The environment '{self.name}' does not start: {failure}") from failure
        with self._lock:
            if self._cache is None and self._store is not None and spec.deterministic:
                self._namespace = namespace(spec, self._pool.source, self._options)
                self._cache = TransitionCache(self._store)
        return spec

    @property
    def capacity(self) -> int:
        """How many episodes can be live without replays; an environment that is not deterministic takes no more."""
        self.spec()
        return self._pool.capacity

    def tasks(self, split: str) -> list[TaskInfo]:
        """All tasks of a split, sorted by id. Raises ``UsageError`` for an unknown split."""
        if split not in self._tasks:
            known = self.spec().splits
            if split not in known:
                raise UsageError(f"Environment '{self.name}' has no split '{split}'.{nearest(split, known)}")
            try:
                tasks = [task_from(plain) for plain in self._pool.tasks(split).result()]
            except (EnvFailure, RemoteError) as failure:
                raise MissingError(f"The tasks of '{self.name}' ({split}) cannot be listed: {failure}") from failure
            self._tasks[split] = tasks
            self._hashes.update((task.id, task.content_hash) for task in tasks)
        return list(self._tasks[split])

    def open(self, task_id: str, seed: int = 0) -> PoolEpisode:
        """A new episode; no I/O until its reset.

        Its results are cached once :meth:`tasks` has listed the task, whose content hash is a part of the key.
        """
        return PoolEpisode(self, self._pool, task_id, seed)

    def experts(self, task_ids: Sequence[str]) -> list[ExpertEpisode | None]:
        """The expert's episodes of these tasks, in order; computed in parallel by the workers.

        Raises:
            UsageError: a task is not known.
            EnvFailure: a worker failed more often than it may.
        """
        self.spec()
        self.count("experts", len(task_ids))
        answers: dict[str, ExpertEpisode | None] = {}
        asked: dict[str, Future[Any]] = {}
        for task_id in dict.fromkeys(task_ids):
            key = self._expert_key(task_id)
            known, episode = self._cache.expert(key) if self._cache and key else (False, None)
            if known:
                answers[task_id] = episode
            else:
                asked[task_id] = self._pool.expert(task_id)
        self.count("experts_simulated", len(asked))
        for task_id, future in asked.items():
            try:
                answers[task_id] = expert_from(future.result())
            except RemoteError as error:
                raise UsageError(f"Environment '{self.name}' has no task {task_id!r}.") from error
            if self._cache and (key := self._expert_key(task_id)):
                self._cache.put_expert(key, answers[task_id])
        return [answers[task_id] for task_id in task_ids]

    def stats(self) -> dict[str, float]:
        """Counters since the start, and ``cache_hit_rate``: the share of resets and steps that were not simulated.

        ``*_replayed`` are simulated besides, to bring an episode back to where it was; ``cache_shared`` were asked
        while another episode's same question was under way.
        """
        with self._lock:
            counts = self._counts + self._pool.counts
        stats = {name: float(counts[name]) for name in COUNTS}
        asked = stats["cache_hits"] + stats["cache_shared"] + stats["cache_misses"]
        stats["cache_hit_rate"] = (stats["cache_hits"] + stats["cache_shared"]) / asked if asked else 0.0
        return stats

    def close(self) -> None:
        """Ends every worker process; safe to call twice."""
        self._pool.close()
        if self._store is not None:
            self._store.close()

    # --- for its episodes ------------------------------------------------------------------------------------------

    def count(self, name: str, n: int = 1) -> None:
        """Adds to a counter of :meth:`stats`."""
        with self._lock:
            self._counts[name] += n

    def place(self, task_id: str, seed: int) -> tuple[TransitionCache, Position] | None:
        """The cache, and where an episode begins in it; None when its results are not to be remembered."""
        content_hash = self._hashes.get(task_id)
        if self._cache is None or not content_hash:
            return None
        return self._cache, Position.initial(self._namespace, content_hash, task_id, seed)

    def play(self, key: bytes, cache: TransitionCache, track: Track, action: str | None) -> Future[Any]:
        """Simulates what is not known. Who asks while the same question is under way gets the same answer."""
        with self._lock:
            shared = self._under_way.get(key)
            if shared is not None:
                self._counts["cache_shared"] += 1
                return shared
            played: Future[Any] = Future()
            if (landed := cache.recent(key)) is not None:  # since the caller looked
                self._counts["cache_hits"] += 1
                played.set_result(landed)
                return played
            self._counts["cache_misses"] += 1
            played = self._pool.play(track, action)
            self._under_way[key] = played

        def land(played: Future[Any]) -> None:
            if not played.cancelled() and played.exception() is None:
                cache.put(key, played.result())
            with self._lock:
                del self._under_way[key]

        played.add_done_callback(land)
        return played

    def _expert_key(self, task_id: str) -> bytes | None:
        content_hash = self._hashes.get(task_id)
        return digest(self._namespace, "expert", content_hash, task_id) if content_hash else None


class PoolEpisode:
    """An ``EnvEpisode``: a trail, a place in the cache, and a slot of the pool once something has to be simulated."""

    def __init__(self, client: PoolClient, pool: Pool, task_id: str, seed: int) -> None:
        self._client = client
        self._pool = pool
        self._track = Track(Trail(task_id, seed, erase_loops=False))
        self._cache: TransitionCache | None = None
        self._position: Position | None = None
        self._markov = False

    def reset(self) -> Future[StepResult]:
        """The initial state of the task."""
        trail = self._track.trail
        self._markov = trail.erase_loops = self._client.spec().markov
        self._client.count("resets")
        if (place := self._client.place(trail.task_id, trail.seed)) is not None:
            self._cache, self._position = place
        return self._ask(None)

    def step(self, action: str) -> Future[StepResult]:
        """Plays one action; only after the previous future is done."""
        if not self._track.trail.results:
            raise RuntimeError("an episode is reset before its first step")
        self._client.count("steps")
        return self._ask(action)

    def close(self) -> None:
        """Gives its slot back; safe to call twice."""
        self._pool.release(self._track)

    def _ask(self, action: str | None) -> Future[StepResult]:
        answer: Future[StepResult] = Future()
        answer.set_running_or_notify_cancel()  # the caller cannot cancel it: the worker would not know
        if self._cache is None or self._position is None:
            played = self._pool.play(self._track, action)
        else:
            key = self._position.prefix if action is None else self._position.key(action)
            known = self._cache.get(key)
            if known is not None:
                self._client.count("cache_hits")
                self._advance(action, known)
                answer.set_result(known)
                return answer
            played = self._client.play(key, self._cache, self._track, action)

        def finish(played: Future[Any]) -> None:
            error = None if played.cancelled() else played.exception()
            if played.cancelled():
                answer.set_exception(CancelledError())
            elif isinstance(error, RemoteError):
                task = self._track.trail.task_id
                answer.set_exception(UsageError(f"Environment '{self._client.name}' has no task {task!r}."))
            elif error is not None:
                answer.set_exception(error)
            else:
                result: StepResult = played.result()
                self._advance(action, result)
                answer.set_result(result)

        played.add_done_callback(finish)
        return answer

    def _advance(self, action: str | None, result: StepResult) -> None:
        if action is None:
            self._track.trail.start(result)
        else:
            self._track.trail.push(action, result)
        if self._position is not None:
            self._position = self._position.after(action, result, self._markov)
