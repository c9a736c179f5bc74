"""Whether a run's folder is whole, and whether two runs are the same (``agentcredit runs verify``).

Torch is not needed: checkpoints are judged by their manifests and compared by their tensors' bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentcredit import outcomes
from agentcredit.errors import AgentCreditError
from agentcredit.rundir import RunDir, differences
from agentcredit.training.checkpoint import problem_of

OF_THE_MACHINE = ("time/", "env/")
CLOCK = "/seconds"
"""Beginnings, and the end, of metric names that measure the machine, not the run; two equal runs differ in them."""


def problems(run: RunDir) -> list[str]:
    """Everything that is damaged, doubled or missing in a run's folder; empty when it is whole."""
    return [*_metrics(run), *_episodes(run), *_evaluations(run), *_checkpoints(run)]


def disagreements(one: RunDir, other: RunDir, tolerance: float = 0.0) -> list[str]:
    """Where two runs that should be the same differ: configuration, metrics of each step, final weights.

    ``tolerance`` is the largest allowed relative difference of a number; 0 asks for equality, as lockstep policies on
    one device give it.
    """
    found = [f"{key}: {a!r} and {b!r}" for key, a, b in differences(one.config, other.config)]
    left, right = ({record["step"]: record for record in run.metrics()} for run in (one, other))
    if left.keys() != right.keys():
        found.append(f"metrics: steps {_span(left)} and {_span(right)}")
    for step in sorted(left.keys() & right.keys()):
        found += [
            f"step {step}, {name}: {left[step].get(name)!r} and {right[step].get(name)!r}"
            for name in {**left[step], **right[step]}
            if not (name.startswith(OF_THE_MACHINE) or name.endswith(CLOCK))
            and not _same(left[step].get(name), right[step].get(name), tolerance)
        ]
    return [*found, *_weights(one, other, tolerance)]


def _metrics(run: RunDir) -> Iterator[str]:
    try:
        steps = [int(record["step"]) for record in run.metrics()]
    except AgentCreditError as error:
        yield str(error)
        return
    doubled = sorted({step for step in steps if steps.count(step) > 1})
    if doubled:
        yield f"{run.metrics_path}: steps {', '.join(map(str, doubled))} are there more than once"
    if steps and steps != list(range(steps[0], steps[0] + len(steps))) and not doubled:
        yield f"{run.metrics_path}: the steps are not consecutive"


def _episodes(run: RunDir) -> Iterator[str]:
    for step in run.episode_steps():
        try:
            if not sum(1 for _ in run.read_episodes(step)):
                yield f"{run.episodes_path(step)} holds no episode"
        except AgentCreditError as error:
            yield str(error)


def _evaluations(run: RunDir) -> Iterator[str]:
    for path in sorted(run.evaluations.glob("*.jsonl")):
        try:
            outcomes.read(path)
        except AgentCreditError as error:
            yield str(error)


def _checkpoints(run: RunDir) -> Iterator[str]:
    for folder in checkpoint_folders(run):
        problem = problem_of(folder)
        if problem:
            yield f"{folder}: {problem}"


def checkpoint_folders(run: RunDir) -> list[Path]:
    """The run's checkpoints, the last one at the end."""
    return sorted(path for path in run.checkpoints.glob("step-*") if path.is_dir())


def _weights(one: RunDir, other: RunDir, tolerance: float) -> Iterator[str]:
    import numpy as np
    from safetensors import safe_open

    left, right = (checkpoint_folders(run) for run in (one, other))
    if not left or not right:
        if left or right:
            yield "only one of them has a checkpoint"
        return
    if left[-1].name != right[-1].name:
        yield f"last checkpoints: {left[-1].name} and {right[-1].name}"
        return
    for path in sorted(left[-1].glob("*.safetensors")):
        twin = right[-1] / path.name
        if not twin.exists():
            yield f"{twin} is missing"
        elif _sha256(path) != _sha256(twin):
            with safe_open(path, "numpy") as a, safe_open(twin, "numpy") as b:
                if set(a.keys()) != set(b.keys()):
                    yield f"{path.name}: other tensors"
                    continue
                for name in a.keys():  # noqa: SIM118 - the reader is no mapping
                    x, y = a.get_tensor(name), b.get_tensor(name)
                    if x.shape != y.shape or not np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True):
                        yield f"{path.name}, {name}: largest difference {_largest(x, y)}"


def _largest(x: Any, y: Any) -> str:
    import numpy as np

    return "(other shapes)" if x.shape != y.shape else f"{np.max(np.abs(x - y)):.3g}"


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    return a == b


def _span(records: dict[int, Any]) -> str:
    return f"{min(records)}–{max(records)}" if records else "none"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
