"""What crosses the pipe between the program and an environment's worker: one JSON object a line, in ASCII.

    program → worker   {"id": 7, "op": "step", "instance": 3, "action": "open fridge 1"}
    worker → program   {"id": 7, "ok": {...}}  or  {"id": 7, "error": {"type", "message", "traceback"}}

The first request is ``start``; its answer carries the protocol's version and the environment's spec. Every later answer
carries its request's id, so that an answer to a request that was given up is recognised and dropped. Both sides import
this module, so it needs the standard library alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from agentcredit.envs.base import EnvSpec, ExpertEpisode, ExpertStep, StepResult, TaskInfo

PROTOCOL = 1

BOOTSTRAP = (
    "import sys, types\n"
    "package = types.ModuleType('agentcredit')\n"
    "package.__path__ = [sys.argv[1]]\n"
    "sys.modules['agentcredit'] = package\n"
    "from agentcredit.envs.worker import main\n"
    "main()\n"
)
"""Runs the worker from this package's folder without putting the program's site-packages on the worker's path."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as one line. ASCII escapes keep whatever text a model or a simulator produced, lone surrogates too."""
    return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Inverse of :func:`encode`. Raises ValueError for anything else than a JSON object."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


def spec_from(plain: Mapping[str, Any]) -> EnvSpec:
    """An :class:`EnvSpec` from its plain form."""
    return EnvSpec(**{**plain, "task_types": tuple(plain["task_types"])})


def task_from(plain: Mapping[str, Any]) -> TaskInfo:
    """A :class:`TaskInfo` from its plain form."""
    return TaskInfo(**{**plain, "secrets": tuple(plain.get("secrets", ()))})


def result_from(plain: Mapping[str, Any]) -> StepResult:
    """A :class:`StepResult` from its plain form. Admissible actions come again and again, so equal texts are one object."""
    result = StepResult(**plain)
    if result.admissible is not None:
        result.admissible[:] = map(sys.intern, result.admissible)
    return result


def expert_from(plain: Mapping[str, Any] | None) -> ExpertEpisode | None:
    """An :class:`ExpertEpisode` from its plain form."""
    if plain is None:
        return None
    return ExpertEpisode(
        task_id=plain["task_id"],
        steps=[ExpertStep(**step) for step in plain["steps"]],
        results=[result_from(result) for result in plain["results"]],
    )
