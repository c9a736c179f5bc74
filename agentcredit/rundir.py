"""The folder of a run: what training leaves, and how the same command finds and continues it.

    <out>/<name>/  config.toml  repro.json  run.json  metrics.jsonl  episodes/step-000012.jsonl.zst
                   eval/<split>-000012.jsonl  checkpoints/  logs/attempt-1.log

One process at a time trains in a folder. Its name carries the configuration's fingerprint, so that another configuration
is another folder unless the user names it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from agentcredit import repro
from agentcredit.config import RunConfig
from agentcredit.config_sources import resolve
from agentcredit.config_toml import to_toml
from agentcredit.errors import MissingError, RunFailed, UsageError, nearest
from agentcredit.files import (
    append_jsonl,
    atomic_write_json,
    atomic_write_text,
    naming,
    read_jsonl,
    read_zst_jsonl,
    sync_folder,
    write_zst_jsonl,
)
from agentcredit.locking import FileLock, LockHeld

RUN_FORMAT = 1
LATEST = "latest"
"""File in ``out`` that holds the name of the run that was started last (a plain file: a link would be listed twice)."""

REPLACED = ".replaced"
"""Folder in ``out`` where ``--fresh`` puts what was there before; nothing is deleted."""

Status = Literal["running", "finished", "failed", "interrupted", "killed"]


class RunDir:
    """One run's folder. :meth:`open` to train in it, :meth:`load` or :meth:`find` to read it."""

    def __init__(self, path: Path, config: RunConfig, attempt: int = 0, lock: FileLock | None = None) -> None:
        self.path = path
        self.config = config
        self.attempt = attempt
        """Number of this process's attempt, from 1; 0 when the run is only read."""
        self._lock = lock

    @classmethod
    def open(
        cls, config: RunConfig, *, origins: Mapping[str, str] | None = None, fresh: bool = False, fork: str = ""
    ) -> RunDir:
        """Makes the run's folder, or takes it up where it was left, and begins an attempt.

        Args:
            config: the run's configuration.
            origins: where its values came from, for the comments of ``config.toml``.
            fresh: put an existing folder aside (under ``.replaced/``) and start over.
            fork: continue the checkpoints of the folder that ``config`` names as a new run of this name, whose
                configuration may differ.

        Raises:
            UsageError: another process trains there, or the folder belongs to another configuration.
            RunFailed: it cannot be written.
        """
        name = checked_name(config.name or default_name(config))
        if fork and fresh:
            raise UsageError("--fork continues a run and --fresh starts over: give one of them.")
        if fork:
            _fork(config.out / name, config.out / checked_name(fork))
            name, config = fork, config.model_copy(update={"name": fork})
        path = config.out / name
        lock = _locked(path)
        try:
            if fresh and (path / "config.toml").exists():
                lock = _put_aside(path, lock)
            else:
                _refuse_other_configuration(path, config)
            run = cls(path, config, lock=lock)
            run._begin(origins or {})
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def load(cls, path: Path) -> RunDir:
        """A run that is only read.

        Raises:
            MissingError: the folder is not a run's.
        """
        if not (path / "config.toml").exists():
            raise MissingError(f"{path} is not the folder of a run: it has no config.toml.")
        return cls(path, resolve([path / "config.toml"]).config)

    @classmethod
    def find(cls, out: Path, name: str) -> RunDir:
        """A run by its path, its name in ``out``, an unambiguous beginning of it, or ``latest``.

        Raises:
            UsageError: no run, or several, go by this name.
            MissingError: there is no run at all.
        """
        if (Path(name) / "config.toml").exists():
            return cls.load(Path(name))
        names = cls.names(out)
        if not names:
            raise MissingError(f"There is no run in {out}: `agentcredit train` makes one, --out looks elsewhere.")
        if name == LATEST:
            pointer = out / LATEST
            name = pointer.read_text().strip() if pointer.exists() else names[-1]
        matches = [name] if name in names else [other for other in names if other.startswith(name)]
        if len(matches) > 1:
            raise UsageError(f"Several runs in {out} begin with '{name}': {', '.join(matches)}. Write more of it.")
        if not matches:
            raise UsageError(f"There is no run '{name}' in {out}.{nearest(name, names)}")
        return cls.load(out / matches[0])

    @classmethod
    def names(cls, out: Path) -> list[str]:
        """Names of the runs in ``out``, the one started last at the end."""
        if not out.is_dir():
            return []
        folders = [path for path in out.iterdir() if not path.name.startswith(".") and (path / "config.toml").exists()]
        return [path.name for path in sorted(folders, key=lambda path: ((path / "config.toml").stat().st_mtime, path))]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def episodes(self) -> Path:
        """Folder of the stored episodes."""
        return self.path / "episodes"

    @property
    def evaluations(self) -> Path:
        """Folder of the evaluations' outcomes."""
        return self.path / "eval"

    @property
    def metrics_path(self) -> Path:
        """File of the training metrics, one JSON line a step."""
        return self.path / "metrics.jsonl"

    @property
    def log_path(self) -> Path:
        """Log of this attempt, or of the last one when the run is only read."""
        number = self.attempt or len(self.info()["attempts"])
        return self.path / "logs" / f"attempt-{number}.log"

    def eval_path(
        self,
        panel: str,
        step: int,
        policy: str = "transformers",
        other_temperature: float | None = None,
        rerank: str = "",
    ) -> Path:
        """File for the outcomes of a panel (``valid_seen``, ``valid_seen[48]``) at a checkpoint's step (-1: the start).

        The baselines ``random`` and ``expert`` depend on no checkpoint, and carry their own name instead of a step.
        ``other_temperature`` is that of an evaluation which was not sampled at the run's own ``eval.temperature``: it
        has a file of its own (``valid_seen-000012-t0.8.jsonl``) and never takes the place of the run's. So has one that
        chose among candidates: ``rerank`` says how (``rerank(forecaster,n=8,K=2)``).
        """
        place = f"{step:06d}" if step >= 0 else "start"
        decoding = "" if other_temperature is None else f"-t{other_temperature:g}"
        decoding += "-" + re.sub(r"[^A-Za-z0-9.]+", "-", rerank).strip("-") if rerank else ""
        safe = re.sub(r"[^A-Za-z0-9._]+", "-", panel).strip("-")
        return self.evaluations / f"{safe}-{place + decoding if policy == 'transformers' else policy}.jsonl"

    def info(self) -> dict[str, Any]:
        """What ``run.json`` holds: the MLflow run, where it was forked from, and its attempts."""
        path = self.path / "run.json"
        if not path.exists():
            return {"format": RUN_FORMAT, "mlflow_run_id": "", "forked_from": "", "attempts": []}
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise MissingError(f"{path} is damaged: {error}.") from error

    @property
    def mlflow_run_id(self) -> str:
        """Id of the MLflow run that all attempts share; empty before the first has one."""
        return self.info()["mlflow_run_id"]

    @property
    def warm_start(self) -> str:
        """Hash of the weights that training started from, as its attempts noted it; empty before they have."""
        attempts = json.loads((self.path / "repro.json").read_text())["attempts"]
        return next((record["warm_start"] for record in reversed(attempts) if record.get("warm_start")), "")

    def set_mlflow_run_id(self, run_id: str) -> None:
        """Remembers the MLflow run for the next attempt."""
        atomic_write_json(self.path / "run.json", {**self.info(), "mlflow_run_id": run_id})

    def note(self, **facts: Any) -> None:
        """Adds facts to this attempt's record in ``repro.json``: the panel's hash, the warm start's, torch's build."""
        path = self.path / "repro.json"
        record = json.loads(path.read_text())
        record["attempts"][-1].update(facts)
        atomic_write_json(path, record)

    def append_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends one step's metrics as a whole line."""
        append_jsonl(self.metrics_path, {"step": step, **metrics})

    def metrics(self) -> list[dict[str, Any]]:
        """All metrics so far, one record a step."""
        return read_jsonl(self.metrics_path)

    def truncate_after(self, step: int) -> int:
        """Forgets what came after ``step``, as a resume from that step's checkpoint will do it again.

        Takes away later lines of the metrics (and a torn last one) and later episodes. Returns the number of lines taken.
        """
        records = self.metrics()
        kept = [record for record in records if record["step"] <= step]
        if self.metrics_path.exists():
            atomic_write_text(self.metrics_path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in kept))
        for later in self.episode_steps():
            if later > step:
                self.episodes_path(later).unlink()
        return len(records) - len(kept)

    def episodes_path(self, step: int) -> Path:
        """File of one step's episodes."""
        return self.episodes / f"step-{step:06d}.jsonl.zst"

    def write_episodes(self, step: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Stores one step's episodes (JSON records), all or none."""
        write_zst_jsonl(self.episodes_path(step), records)

    def read_episodes(self, step: int) -> Iterator[dict[str, Any]]:
        """The stored episodes of one step."""
        return read_zst_jsonl(self.episodes_path(step))

    def episode_steps(self) -> list[int]:
        """Steps whose episodes are stored, in order."""
        return sorted(int(path.name[5:-10]) for path in self.episodes.glob("step-*.jsonl.zst"))

    def finish(self, status: Status) -> None:
        """Ends the attempt and lets the folder go."""
        info = self.info()
        info["attempts"][-1].update(status=status, ended=_now())
        atomic_write_json(self.path / "run.json", info)
        self.close()

    def close(self) -> None:
        """Lets the folder go; safe to call twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, origins: Mapping[str, str]) -> None:
        """Writes the folder's records for a new attempt. ``config.toml`` comes last: it makes the folder a run."""
        info = self.info()
        for attempt in info["attempts"]:
            if attempt["status"] == "running":  # nobody holds the lock: it ended without saying so
                attempt["status"] = "killed"
        self.attempt = len(info["attempts"]) + 1
        record = repro.collect(self.config)
        info["attempts"].append(
            {
                "attempt": self.attempt,
                "status": "running",
                "started": _now(),
                "ended": None,
                "command": record["command"],
                "host": socket.gethostname(),
                "pid": os.getpid(),
            }
        )
        history = self.path / "repro.json"
        attempts = json.loads(history.read_text())["attempts"] if history.exists() else []
        atomic_write_json(history, {"format": RUN_FORMAT, "attempts": [*attempts, record]})
        atomic_write_json(self.path / "run.json", info)
        with naming(self.path):
            for folder in (self.checkpoints, self.episodes, self.evaluations, self.path / "logs"):
                folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(self.path / "config.toml", repro.mask_uri(to_toml(self.config, origins)))
        atomic_write_text(self.path.parent / LATEST, self.name + "\n")


def default_name(config: RunConfig) -> str:
    """``<env>__<method>__<model>__s<seed>__<fingerprint>``; the method's parameters are in the fingerprint."""
    method = config.method.name + (f"-{config.method.base}" if config.method.base else "")
    model = Path(config.policy.model).name or config.policy.model
    parts = [config.env.name, method, model, f"s{config.seed}", config.fingerprint()]
    return "__".join(re.sub(r"[^A-Za-z0-9._+=-]+", "-", part) for part in parts)


def checked_name(name: str) -> str:
    """The name, if it can be a folder's.

    Raises:
        UsageError: it cannot.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,199}", name) or name == LATEST:
        raise UsageError(
            f"'{name}' cannot name a run: use letters, digits and . _ + = - (not at the beginning), and not '{LATEST}'."
        )
    return name


def differences(one: RunConfig, other: RunConfig) -> list[tuple[str, Any, Any]]:
    """Keys that may change a result and differ, with both values."""
    left, right = (dict(_leaves(config.compared(), "")) for config in (one, other))
    return [(key, left.get(key), right.get(key)) for key in {**left, **right} if left.get(key) != right.get(key)]


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _refuse_other_configuration(path: Path, config: RunConfig) -> None:
    if not (path / "config.toml").exists():
        return
    found = differences(RunDir.load(path).config, config)
    if found:
        shown = "; ".join(f"{key} is {was!r} there and {now!r} here" for key, was, now in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise UsageError(
            f"{path} belongs to another configuration: {shown}{more}. Give this one another --name, continue that run's "
            "checkpoints under this configuration with --fork NAME, or put it aside and start over with --fresh."
        )


def _locked(path: Path) -> FileLock:
    try:
        return FileLock(path / ".lock")
    except LockHeld as held:
        raise UsageError(
            f"{path} is being trained by {held}: wait for it, stop it, or give this run another --name."
        ) from held


def _put_aside(path: Path, lock: FileLock) -> FileLock:
    """Moves a run's folder away and locks the new, empty one."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    target = path.parent / REPLACED / f"{path.name}-{stamp}-{secrets.token_hex(2)}"
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        sync_folder(path.parent)
    fresh = _locked(path)
    lock.release()
    return fresh


def _fork(source: Path, target: Path) -> None:
    """Copies checkpoints and metrics into a new folder, once: repeating the command continues the fork."""
    if (target / "run.json").exists():
        if RunDir(target, RunConfig()).info()["forked_from"] != source.name:
            raise UsageError(
                f"--fork {target.name}: {target} exists and is no fork of {source.name}; choose a new name."
            )
        return
    if not (source / "checkpoints").is_dir() or not any((source / "checkpoints").iterdir()):
        raise UsageError(f"--fork {target.name}: {source} has no checkpoint to continue from.")
    draft = target.parent / f".fork-{secrets.token_hex(4)}"
    record = {"format": RUN_FORMAT, "mlflow_run_id": "", "forked_from": source.name, "attempts": []}
    try:
        with _locked(source), naming(target):  # its own training would prune checkpoints under the copy
            shutil.copytree(source / "checkpoints", draft / "checkpoints", copy_function=_link_or_copy)
            if (source / "metrics.jsonl").exists():
                shutil.copy2(source / "metrics.jsonl", draft / "metrics.jsonl")
            atomic_write_json(draft / "run.json", record)
            draft.rename(target)
    except RunFailed:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _link_or_copy(source: str, target: str) -> str:
    """Checkpoints never change once written, so that a fork may share their bytes."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
