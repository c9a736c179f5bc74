"""Clients of the toy environment, and ways to play it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentcredit.envs.base import StepResult
from agentcredit.envs.client import PoolClient
from agentcredit.envs.pool import Pool
from agentcredit.envs.process import WorkerCommand
from agentcredit.envs.store import BlobStore

TOY = Path(__file__).with_name("toy.py")
ACTIONS = ("left", "right", "take", "open", "jump")
TASKS = [f"train/{n}" for n in range(6)]


def command(**options: Any) -> WorkerCommand:
    """How a toy worker is started."""
    return WorkerCommand("toy", sys.executable, f"{TOY}:make", options)


@contextmanager
def corridor(
    *,
    processes: int = 2,
    instances: int = 0,
    call_timeout: float = 20.0,
    retries: int = 2,
    log_path: Path | None = None,
    store: Path | None = None,
    store_limit: int = 2**26,
    **options: Any,
) -> Iterator[PoolClient]:
    """A client of the toy environment; ``store`` is the cache's file. It has listed the training tasks."""
    pool = Pool(
        command(**options),
        processes=processes,
        instances=instances,
        call_timeout=call_timeout,
        retries=retries,
        log_path=log_path,
    )
    client = PoolClient("toy", pool, options, BlobStore(store, store_limit) if store else None)
    try:
        client.tasks("train")
        yield client
    finally:
        client.close()


def play(client: PoolClient, task: str, actions: Sequence[str], seed: int = 0) -> list[StepResult]:
    """One episode by itself."""
    episode = client.open(task, seed)
    results = [episode.reset().result(30)]
    results += [episode.step(action).result(30) for action in actions]
    episode.close()
    return results


def play_together(client: PoolClient, tasks: Sequence[str], plans: Sequence[Sequence[str]]) -> list[list[StepResult]]:
    """Episodes side by side, all plans of one length: everyone's first step, then everyone's second, and so on."""
    episodes = [client.open(task) for task in tasks]
    results = [[future.result(60)] for future in [episode.reset() for episode in episodes]]
    for actions in zip(*plans, strict=True):
        futures = [episode.step(action) for episode, action in zip(episodes, actions, strict=True)]
        for row, future in zip(results, futures, strict=True):
            row.append(future.result(60))
    for episode in episodes:
        episode.close()
    return results


def random_plans(n: int, length: int, seed: int = 0) -> list[list[str]]:
    """Random walks."""
    rng = random.Random(seed)
    return [[rng.choice(ACTIONS) for _ in range(length)] for _ in range(n)]
