"""Steps per second of small generated ALFWorld games: simulated, with an empty transition cache, and with a filled one.

    python benchmarks/bench_transitions.py

Random walks of siblings on the same games, two worker processes, by the clock, the best of three rounds taken in turns. The games are loaded once before, so that the
translations that ALFWorld itself keeps are there for all three.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

from agentcredit.config import EnvConfig
from agentcredit.envs.client import PoolClient
from agentcredit.envs.pool import Pool
from agentcredit.envs.process import WorkerCommand
from agentcredit.envs.registry import entry, interpreter, options_for
from agentcredit.envs.store import BlobStore
from agentcredit.errors import AgentCreditError

GAMES, SIBLINGS, STEPS, ROUNDS = 6, 6, 16, 3


def connect(store: Path | None) -> PoolClient:
    """A client as ``registry.connect`` makes it, with a cache of its own."""
    env = EnvConfig(name="alfworld")
    command = WorkerCommand(env.name, str(interpreter(env.name)), entry(env.name).factory, options_for(env))
    pool = Pool(command, processes=env.processes, call_timeout=env.call_timeout)
    return PoolClient(env.name, pool, command.options, BlobStore(store, 2**28) if store else None)


def walk(client: PoolClient, steps: int) -> tuple[float, dict[str, float]]:
    """Seconds of siblings that walk at random, resets included (an answer from the cache may put one off); the same walks each time."""
    games = [task.id for task in client.tasks("train")[:GAMES]]
    episodes = [client.open(game) for game in games for _ in range(SIBLINGS)]
    rngs = [np.random.default_rng([n]) for n in range(len(episodes))]
    began = time.perf_counter()
    seen = [future.result() for future in [episode.reset() for episode in episodes]]
    for _ in range(steps):
        live = [n for n, result in enumerate(seen) if not result.done]
        futures = [episodes[n].step(str(rngs[n].choice(seen[n].admissible or ["look"]))) for n in live]
        for n, future in zip(live, futures, strict=True):
            seen[n] = future.result()
    seconds = time.perf_counter() - began
    for episode in episodes:
        episode.close()
    return seconds, client.stats()


def timed(store: Path | None, steps: int = STEPS) -> tuple[float, dict[str, float]]:
    client = connect(store)
    try:
        return walk(client, steps)
    finally:
        client.close()


def main() -> None:
    timed(None, steps=0)
    results: dict[str, tuple[float, dict[str, float]]] = {}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "transitions.sqlite"
            for name, where in (("simulated", None), ("cache, empty", store), ("cache, filled", store)):
                measured = timed(where)
                results[name] = min(results.get(name, measured), measured, key=lambda found: found[0])
    print(f"{GAMES} games × {SIBLINGS} siblings × {STEPS} random steps, 2 worker processes")
    first = results["simulated"][0]
    for name, (seconds, stats) in results.items():
        rate = f"{seconds:6.2f} s  {stats['steps'] / seconds:7.0f} steps/s  {first / seconds:6.1f} × simulated"
        resets, steps = (int(stats[f"{what}_simulated"] + stats[f"{what}_replayed"]) for what in ("resets", "steps"))
        print(
            f"  {name:<14}  {rate}  {stats['cache_hit_rate']:5.0%} hits, {resets:>2} resets and {steps:>3} steps simulated"
        )


if __name__ == "__main__":
    try:
        main()
    except AgentCreditError as error:
        raise SystemExit(f"Error: {error}") from error
