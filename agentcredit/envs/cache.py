"""The transition cache: what a deterministic environment was asked once is not simulated again.

A key stands for everything that a result depends on: the environment with its version, package, adapter source and
options; the task's content hash and the seed; and then either the simulator's full state and the action (Markov
environments), or the whole sequence of actions since the reset. Group siblings, repeated evaluations and the runs of a
comparison share most of them.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentcredit.envs.base import EnvSpec, ExpertEpisode, StepResult, to_plain
from agentcredit.envs.store import BlobStore
from agentcredit.envs.wire import expert_from, result_from

FORMAT = 1
MEMORY_ENTRIES = 20_000
"""Results held in memory, at most: some 50 MB where a result lists two dozen actions, whose texts are shared."""


def digest(*parts: str | bytes) -> bytes:
    """16 bytes that stand for the parts, each taken with its length, so that no two sequences run together."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.digest()


def namespace(spec: EnvSpec, source: str, options: Mapping[str, Any]) -> bytes:
    """What all results of an environment depend on. ``data`` and ``home`` say where things lie, not what they are."""
    kept = {name: value for name, value in options.items() if name not in ("data", "home")}
    identity = [FORMAT, spec.name, spec.version, spec.package, spec.markov, source, kept]
    return digest(json.dumps(identity, sort_keys=True, default=str))


@dataclass(frozen=True, slots=True)
class Position:
    """Where an episode stands, as far as keys are concerned."""

    task: bytes
    prefix: bytes
    full_state: str | None = None

    @classmethod
    def initial(cls, namespace: bytes, content_hash: str, task_id: str, seed: int) -> Position:
        """Before the reset; ``prefix`` is the reset's own key."""
        task = digest(namespace, content_hash, task_id, str(seed))
        return cls(task, digest(task, "reset"))

    def key(self, action: str) -> bytes:
        """The key of a step from here."""
        if self.full_state is not None:
            return digest(self.task, "state", self.full_state, action)
        return digest(self.prefix, action)

    def after(self, action: str | None, result: StepResult, markov: bool) -> Position:
        """The position that the reset (None) or the action led to."""
        prefix = self.prefix if action is None else digest(self.prefix, action)
        return replace(self, prefix=prefix, full_state=result.full_state if markov else None)


class TransitionCache:
    """Results by key, in memory before the store. Results are shared: whoever gets one must not change it."""

    def __init__(self, store: BlobStore, memory_entries: int = MEMORY_ENTRIES) -> None:
        self._store = store
        self._memory: OrderedDict[bytes, StepResult] = OrderedDict()
        self._size = memory_entries
        self._lock = threading.Lock()

    def get(self, key: bytes) -> StepResult | None:
        """The result, or None."""
        result = self.recent(key)
        if result is None and (plain := self._load(key)) is not None:
            result = result_from(plain)
            self._remember(key, result)
        return result

    def recent(self, key: bytes) -> StepResult | None:
        """The result if it is in memory."""
        with self._lock:
            result = self._memory.get(key)
            if result is not None:
                self._memory.move_to_end(key)
            return result

    def put(self, key: bytes, result: StepResult) -> None:
        """Keeps a result."""
        self._remember(key, result)
        self._store.put(key, _pack(vars(result)))

    def expert(self, key: bytes) -> tuple[bool, ExpertEpisode | None]:
        """Whether the expert's answer is known, and the answer."""
        plain = self._load(key)
        return (False, None) if plain is None else (True, expert_from(plain["expert"]))

    def put_expert(self, key: bytes, episode: ExpertEpisode | None) -> None:
        """Keeps an expert's answer; that there is no expert for a task is an answer too."""
        self._store.put(key, _pack({"expert": None if episode is None else to_plain(episode)}))

    def close(self) -> None:
        """Writes what is pending. Safe to call twice."""
        self._store.close()

    def _load(self, key: bytes) -> dict[str, Any] | None:
        value = self._store.get(key)
        if value is None:
            return None
        try:
            return json.loads(zlib.decompress(value))
        except (zlib.error, ValueError):
            return None  # a damaged value, which its checksum gives away: simulated again

    def _remember(self, key: bytes, result: StepResult) -> None:
        with self._lock:
            self._memory[key] = result
            self._memory.move_to_end(key)
            if len(self._memory) > self._size:
                self._memory.popitem(last=False)


def _pack(plain: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(plain, separators=(",", ":")).encode("ascii"), 1)
