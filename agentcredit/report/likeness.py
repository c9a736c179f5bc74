"""What must be equal for results to stand side by side; where it is not, the comparison is refused (exit code 5)."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from agentcredit.config import RunConfig
from agentcredit.errors import ComparisonRefused
from agentcredit.outcomes import Evaluation
from agentcredit.report.collect import TEXT_POLICIES
from agentcredit.tracking import flatten

OF_TASKS = {
    "panel_sha256": "task panel",
    "partial": "share of the panel played",
    "data_source": "source of the tasks",
    "official": "use of official tasks",
    "env_version": "environment version",
    "package": "environment package",
    "max_turns": "turn budget (env.max_turns)",
}
"""Fields that every policy's results share, with what to call them."""

OF_MODELS = {
    "policy": "engine",
    "temperature": "sampling temperature (report --temperature shows one)",
    "repeats": "number of episodes per task (eval.repeats)",
    "comparison": "configuration",
    "warm_start": "warm start",
}
"""Further fields that results of models share."""


def check_alike(evaluations: Sequence[Evaluation]) -> None:
    """Checks that results may stand in one table.

    Raises:
        ComparisonRefused: the sentence names the first field that differs, its two values, and the runs.
    """
    models = [e for e in evaluations if e.header.policy not in TEXT_POLICIES]
    for group, fields in ((evaluations, OF_TASKS), (models, OF_MODELS)):
        for field, name in fields.items():
            for other in group[1:]:
                if getattr(other.header, field) != getattr(group[0].header, field):
                    raise ComparisonRefused(_sentence(group[0], other, field, name))


def _sentence(one: Evaluation, other: Evaluation, field: str, name: str) -> str:
    values = [getattr(e.header, field) for e in (one, other)]
    if field == "panel_sha256":
        texts = [f"{e.header.panel_name} ({e.header.panel_sha256[:12]})" for e in (one, other)]
    elif field == "comparison":
        texts = _first_difference(one, other) or [repr(value) for value in values]
    else:
        texts = [repr(value) for value in values]
    return (
        f"Results on {one.header.env} {one.header.split} cannot stand side by side: the {name} is {texts[0]} in run "
        f"{one.header.run} and {texts[1]} in run {other.header.run}; name the runs that belong together "
        "(`agentcredit report RUN RUN`), or evaluate them alike."
    )


def _first_difference(one: Evaluation, other: Evaluation) -> list[str] | None:
    """``key = value`` on both sides, of the first setting that differs, from the runs' own ``config.toml``."""
    left, right = _settings(one), _settings(other)
    for key in sorted(left.keys() | right.keys()):
        if left.get(key) != right.get(key):
            return [f"{key} = {side.get(key, 'unset')}" for side in (left, right)]
    return None


def _settings(evaluation: Evaluation) -> dict[str, Any]:
    """What ``RunConfig.comparison`` is the hash of; empty where the run's configuration cannot be read."""
    if evaluation.path is None:
        return {}
    try:
        text = (evaluation.path.parent.parent / "config.toml").read_text(encoding="utf-8")
        values = RunConfig.model_validate(tomllib.loads(text)).compared()
    except (OSError, ValueError):
        # The hashes alone then have to do: a refusal must not fail for want of a nicer sentence.
        return {}
    return {key: value for key, value in flatten(values) if key != "seed" and not key.startswith("method.")}
