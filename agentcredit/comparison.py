"""Several methods and seeds on the same tasks, from the same weights: which runs a comparison consists of."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agentcredit.config import ArmConfig, RunConfig
from agentcredit.config_toml import to_toml
from agentcredit.errors import UsageError
from agentcredit.files import atomic_write_text
from agentcredit.launch.local import Command
from agentcredit.methods.registry import build, defaults_of
from agentcredit.rundir import RunDir, default_name

CONFIGURATIONS = ".compare"
"""Folder in ``out`` that holds the resolved configuration of each run of a comparison."""


@dataclass(frozen=True)
class Member:
    """One run of a comparison. ``first`` marks the arm that also plays the warm start, once for all arms of a seed."""

    config: RunConfig
    first: bool

    @property
    def name(self) -> str:
        """The run's folder."""
        return self.config.name

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return self.config.out / self.name

    def is_trained(self) -> bool:
        """Whether the run has made all of its steps and was closed in order."""
        if not (self.folder / "config.toml").exists():
            return False
        attempts = RunDir.load(self.folder).info()["attempts"]
        return bool(attempts) and attempts[-1]["status"] == "finished"

    def train(self) -> Command:
        """The command that trains the run, or continues it."""
        path = self.config.out / CONFIGURATIONS / f"{self.name}.toml"
        atomic_write_text(path, to_toml(self.config, {}))
        return self._command("train", "-c", str(path))

    def evaluations(self, splits: tuple[str, ...]) -> list[Command]:
        """The commands that play each split with the last weights, and with those of the start."""
        out = ("--out", str(self.config.out))
        commands = [self._command("eval", self.name, "--split", split, *out) for split in splits]
        if self.first:
            commands += [
                self._command("eval", self.name, "--split", split, "--checkpoint", "-1", *out) for split in splits
            ]
        return commands

    def _command(self, *arguments: str) -> Command:
        return Command(self.name, (sys.executable, "-m", "agentcredit", *arguments))


def members(config: RunConfig, given: Collection[str] = ()) -> list[Member]:
    """All runs: for each seed each arm, so that the first results of all methods come early.

    An arm has its method's own defaults (dapo's upper clip), except for keys that were ``given``: those are for all arms.

    Raises:
        UsageError: no arm or no seed, a method that is not known, or the same run twice.
    """
    compare = config.compare
    if not compare.arms or not compare.seeds:
        raise UsageError(
            "A comparison needs methods and seeds: give --methods grpo,proas --seeds 3, or [compare] in a -c file."
        )
    found = [
        Member(_arm(config, arm, seed, given), first=arm is compare.arms[0])
        for seed in compare.seeds
        for arm in compare.arms
    ]
    names = [member.name for member in found]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"The comparison holds the same run twice: {', '.join(doubled)}; every arm and seed once.")
    return found


def _arm(config: RunConfig, arm: ArmConfig, seed: int, given: Collection[str]) -> RunConfig:
    method = config.method.model_copy(
        update={"name": arm.method, "base": arm.base, "params": {**config.method.params, **arm.params}}
    )
    build(method)  # a wrong name or parameter is told before anything is trained
    run = config.model_copy(update={"method": method, "seed": seed, "name": ""})
    for key, (value, _) in defaults_of(arm.method, arm.base).items():
        if key not in given:
            section, _, field = key.partition(".")
            changed = getattr(run, section).model_copy(update={field: value})
            run = run.model_copy(update={section: changed})
    return run.model_copy(update={"name": default_name(run)})
