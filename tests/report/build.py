"""Runs' folders with evaluations, made from strings: '1' a success, '0' a failure, 'x' a failure of the harness."""

from __future__ import annotations

from pathlib import Path

from agentcredit import outcomes
from agentcredit.episodes import StopReason
from agentcredit.outcomes import EvalHeader, Evaluation, Outcome

TYPES = ("heat", "pick")


def header(method: str = "grpo", seed: int = 0, **changes) -> EvalHeader:
    values = {
        "run": f"alfworld__{method}__tiny__s{seed}",
        "env": "alfworld",
        "env_version": "1",
        "package": "alfworld 0.4.2",
        "data_source": "generated games (small, v1)",
        "official": False,
        "split": "valid_unseen",
        "role": "test",
        "step": 30,
        "panel_name": "small-v1",
        "panel_sha256": "ab" * 32,
        "panel_size": 8,
        "max_turns": 20,
        "method": method,
        "label": f"{method}(default)",
        "model": "tiny",
        "seed": seed,
        "temperature": 0.4,
        "warm_start": "w0",
        "comparison": "c0",
    }
    return EvalHeader(**{**values, **changes})


def results(ends: str, repeats: int = 1, scores: dict[int, float] | None = None) -> list[Outcome]:
    """Outcomes of tasks t00, t01, …, ``repeats`` characters each; types alternate; a success takes 5 turns."""
    reasons = {"1": StopReason.SUCCESS, "0": StopReason.MAX_TURNS, "x": StopReason.ENV_ERROR}
    return [
        Outcome(
            task_id=f"t{index // repeats:02d}",
            task_type=TYPES[index // repeats % 2],
            repeat=index % repeats,
            success=end == "1",
            score=(scores or {}).get(index, float(end == "1")),
            turns=5 if end == "1" else 20,
            stop_reason=reasons[end],
        )
        for index, end in enumerate(ends)
    ]


def write_run(
    out: Path, method: str, ends: str, seed: int = 0, scores: dict[int, float] | None = None, **changes
) -> Path:
    head = header(method, seed, **changes)
    path = out / head.run / "eval" / f"{head.split}-{head.policy}-{head.step}-{head.temperature}.jsonl"
    outcomes.write(path, head, results(ends, head.repeats, scores))
    (out / head.run / "config.toml").touch()  # every setting at its default
    return path


def evaluation(method: str, ends: str, seed: int = 0, scores: dict[int, float] | None = None, **changes) -> Evaluation:
    head = header(method, seed, **changes)
    return Evaluation(head, tuple(results(ends, head.repeats, scores)))
