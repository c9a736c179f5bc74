"""MLflow, and the only file that knows it.

A tracker is told a run's name and parameters once, then one set of numbers per step. It never loses and never doubles:
a number of a step that the store already holds is skipped, so that a resumed run may simply say everything again, and
numbers that could not be written are kept and written with the next step's.

MLflow takes 1.6 s to import, and is imported when a run starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import posixpath
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from agentcredit.config import TrackConfig
from agentcredit.errors import RunFailed, UsageError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

logger = logging.getLogger(__name__)

Status = Literal["FINISHED", "FAILED", "KILLED"]
T = TypeVar("T")

MASK = "***"
_SECRET_WORDS = frozenset({"token", "key", "apikey", "password", "passwd", "secret", "credential", "credentials"})
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")

_LONGEST_NAME = 250
_LONGEST_PARAM = 6000
_LONGEST_TAG = 8000
_PARAMS_PER_BATCH = 100
_METRICS_PER_BATCH = 1000
_LOCKED_TRIES = 6


class Tracker(Protocol):
    """Where a run's numbers go besides its own folder."""

    def start(
        self, run_name: str, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None = None
    ) -> str:
        """Starts a run, or continues the one with this id; returns the id to keep ("" when nothing is tracked)."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of one step. Steps of a name only grow; what is already there is skipped."""
        ...

    def artifact(self, path: Path) -> None:
        """Keeps a copy of a file with the run."""
        ...

    def finish(self, status: Status) -> None:
        """Ends the run; safe to call twice."""
        ...


class NullTracker:
    """Tracks nothing (``track.enabled = false``)."""

    def start(
        self, run_name: str, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None = None
    ) -> str:
        """Starts nothing; the id is kept for a later attempt that does track."""
        return run_id or ""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Drops the numbers."""

    def artifact(self, path: Path) -> None:
        """Keeps nothing."""

    def finish(self, status: Status) -> None:
        """Ends nothing."""


def open_tracker(config: TrackConfig, default_uri: str) -> Tracker:
    """The tracker that the configuration asks for; nothing is imported or connected before :meth:`Tracker.start`.

    Args:
        config: the ``track`` section.
        default_uri: store to use when neither ``track.uri`` nor ``MLFLOW_TRACKING_URI`` names one: see
            :func:`sqlite_uri`.
    """
    if not config.enabled:
        return NullTracker()
    return MlflowTracker(config.uri or os.environ.get("MLFLOW_TRACKING_URI", "") or default_uri, config.experiment)


def sqlite_uri(out: Path) -> str:
    """The default store: one SQLite file beside the runs."""
    return f"sqlite:///{(out / 'mlflow.db').resolve()}"


class MlflowTracker:
    """One MLflow run. Speaks to the store through ``MlflowClient`` alone: no global active run, no look at git."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri = uri
        self.experiment = experiment
        self.run_id = ""
        self._client: MlflowClient | None = None
        self._last_step: dict[str, int] = {}
        self._pending: list[Metric] = []

    def start(
        self, run_name: str, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None = None
    ) -> str:
        """Starts a run, or continues ``run_id``; a run that the store does not have is started anew, with a warning.

        Args:
            run_name: the run's name in MLflow.
            params: nested values become ``section.key``; long ones become a text artifact; secrets are masked.
            tags: further tags, e.g. ``mlflow.parentRunId`` to nest the run under a sweep's.
            run_id: id that an earlier attempt was given.

        Raises:
            UsageError: the address names a kind of store that MLflow no longer writes to, or a deleted experiment.
            RunFailed: the store cannot be reached.
        """
        if self.uri.startswith("file:") or ("://" not in self.uri and not self.uri.startswith("databricks")):
            raise UsageError(
                f"MLflow no longer writes to folders ('{self.uri}' in track.uri or MLFLOW_TRACKING_URI); "
                "use sqlite:///<file>.db or the address of a server."
            )
        mlflow = _import_mlflow()
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with _alone_at_first(self.uri):
                client = mlflow.MlflowClient(tracking_uri=self.uri)
                client.get_experiment_by_name(self.experiment)
            self._client = client
            if not (run_id and self._continue(client, run_id)):
                experiment_id = self._experiment_id(client)
                named = {name: mask(name, value)[:_LONGEST_TAG] for name, value in tags.items()}
                run = _patiently(lambda: client.create_run(experiment_id, tags=named, run_name=run_name))
                self.run_id = run.info.run_id
                self._last_step = {}
            self._log_params(client, params)
        except (mlflow.MlflowException, SQLAlchemyError, OSError) as error:
            raise RunFailed(
                f"The MLflow store {_USER_INFO.sub('', self.uri)} cannot be used: {_first_line(error)}. "
                "Choose another with --set track.uri=…, or go without by --set track.enabled=false."
            ) from error
        return self.run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One ``log_batch`` with the step's numbers, and with what earlier steps could not write.

        Values that are not finite leave no point; ``nonfinite/<name>`` says 1 at that step instead. The numbers
        of a step are written together or not at all. A store that fails is warned about, and does not stop a training.
        """
        client = self._started()
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        now = int(time.time() * 1000)
        for name, value in clean_names(_finite(metrics)).items():
            if step > self._last_step.get(name, step - 1):
                self._pending.append(Metric(name, value, now, step))
                self._last_step[name] = step
        try:
            self._flush(client)
        except MlflowException as error:
            logger.warning(
                "MLflow did not take step %d (%s); its numbers are kept for the next step.", step, _first_line(error)
            )

    def artifact(self, path: Path) -> None:
        """Keeps a copy of a file with the run; a store that fails is warned about.

        Raises:
            FileNotFoundError: there is no such file.
        """
        client = self._started()
        from mlflow.exceptions import MlflowException

        if not path.is_file():
            raise FileNotFoundError(path)
        try:
            client.log_artifact(self.run_id, str(path))
        except (MlflowException, OSError) as error:
            logger.warning("MLflow did not take the file %s (%s).", path.name, _first_line(error))

    def finish(self, status: Status) -> None:
        """Writes what is still pending, and sets the run's status; safe to call twice, or without a start."""
        if self._client is None:
            return
        client, self._client = self._client, None
        from mlflow.exceptions import MlflowException

        try:
            self._flush(client)
            _patiently(lambda: client.set_terminated(self.run_id, status))
        except MlflowException as error:
            logger.warning("MLflow did not take the end of run %s (%s).", self.run_id, _first_line(error))

    def _started(self) -> MlflowClient:
        if self._client is None:
            raise RuntimeError("the tracker was not started, or is finished")
        return self._client

    def _flush(self, client: MlflowClient) -> None:
        while self._pending:
            batch = self._pending[:_METRICS_PER_BATCH]
            _patiently(lambda batch=batch: client.log_batch(self.run_id, metrics=batch))
            del self._pending[: len(batch)]

    def _continue(self, client: MlflowClient, run_id: str) -> bool:
        """Takes up a run of the store: whether it is there. Learns which step each of its numbers has reached."""
        from mlflow.exceptions import MlflowException

        try:
            run = _patiently(lambda: client.get_run(run_id))
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            logger.warning("MLflow has no run %s (another store, or deleted); a new run is started.", run_id)
            return False
        if run.info.lifecycle_stage != "active":
            logger.warning("The MLflow run %s was deleted; a new run is started.", run_id)
            return False
        self._last_step = {
            name: max(point.step for point in client.get_metric_history(run_id, name)) for name in run.data.metrics
        }
        _patiently(lambda: client.update_run(run_id, status="RUNNING"))
        self.run_id = run_id
        return True

    def _experiment_id(self, client: MlflowClient) -> str:
        from mlflow.exceptions import MlflowException

        found = _patiently(lambda: client.get_experiment_by_name(self.experiment))
        if found is None:
            try:
                return _patiently(lambda: client.create_experiment(self.experiment, _artifact_location(self.uri)))
            except MlflowException as error:
                # Another process created it between the two calls.
                found = client.get_experiment_by_name(self.experiment)
                if found is None or error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
        if found.lifecycle_stage != "active":
            raise UsageError(
                f"The MLflow experiment '{self.experiment}' (track.experiment) is deleted; "
                f"restore it with `mlflow experiments restore -x {found.experiment_id}`, or choose another name."
            )
        return found.experiment_id

    def _log_params(self, client: MlflowClient, params: Mapping[str, Any]) -> None:
        """Writes the parameters that the run does not have yet: MLflow's parameters cannot change."""
        from mlflow.entities import Param

        present = _patiently(lambda: client.get_run(self.run_id)).data.params
        fresh: list[Param] = []
        for name, value in clean_names(dict(flatten(params))).items():
            text = mask(name, value)
            if len(text) > _LONGEST_PARAM:
                file = f"params/{name.replace('/', '_')}.txt"
                if name not in present:
                    client.log_text(self.run_id, text, file)
                text = f"see artifact {file}"
            if name not in present:
                fresh.append(Param(name, text))
            elif present[name] != text:
                logger.warning("The run was started with %s = %s, and continues with %s.", name, present[name], text)
        for start in range(0, len(fresh), _PARAMS_PER_BATCH):
            batch = fresh[start : start + _PARAMS_PER_BATCH]
            _patiently(lambda batch=batch: client.log_batch(self.run_id, params=batch))


def clean_names(values: Mapping[str, T]) -> dict[str, T]:
    """The values under names that every MLflow store takes: letters, digits, ``_ - . / :`` and spaces, at most 250.

    Other characters become ``_``. Names that become equal get a checksum of what they were, so that nothing is lost.
    """
    cleaned: dict[str, T] = {}
    for name in sorted(values):
        short = posixpath.normpath(re.sub(r"[^\w.\-/: ]", "_", name, flags=re.ASCII).strip("/ ") or "_")
        # A step above the top ("../x") would be refused as a path.
        short = re.sub(r"^(\.\.?(/|$))+", "", short) or "_"
        if len(short) > _LONGEST_NAME or short in cleaned or (short != name and short in values):
            short = f"{short[: _LONGEST_NAME - 9]}-{zlib.crc32(name.encode()):08x}"
        cleaned[short] = values[name]
    return cleaned


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as (``section.key``, value) pairs."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def mask(name: str, value: Any) -> str:
    """The value as text, or ``***`` where the name says that it is a secret; user names leave addresses.

    Names are read by words, so that ``api_key`` and ``hf.token`` are secrets and ``max_new_tokens`` is not.
    """
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    if value not in (None, "") and _SECRET_WORDS.intersection(words):
        return MASK
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return _USER_INFO.sub(f"{MASK}@", text)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, value in metrics.items():
        if math.isfinite(value):
            values[name] = float(value)
        else:
            values[f"nonfinite/{name}"] = 1.0
    return values


def _artifact_location(uri: str) -> str | None:
    """Beside the SQLite file; MLflow's own default is a folder of whatever directory the command was called in."""
    if not uri.startswith("sqlite:///"):
        return None
    return (Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()


@contextlib.contextmanager
def _alone_at_first(uri: str) -> Iterator[None]:
    """Lets one process at a time open a SQLite store: two that both find it without tables would both make them."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    path = Path(uri.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed, also by kill -9
        yield


def _patiently(call: Callable[[], T]) -> T:
    """The call's result, tried again while the store says that it is busy: several runs share one SQLite file."""
    from mlflow.exceptions import MlflowException

    for attempt in range(_LOCKED_TRIES):
        try:
            return call()
        except MlflowException as error:
            if error.error_code != "TEMPORARILY_UNAVAILABLE" or attempt == _LOCKED_TRIES - 1:
                raise
            time.sleep(0.1 * 2**attempt)
    raise AssertionError("unreachable")


def _first_line(error: BaseException) -> str:
    return _USER_INFO.sub("", str(error).strip().split("\n", 1)[0]).rstrip(".")


def _import_mlflow() -> Any:
    """MLflow without telemetry, without a search for git, and quiet: its own log repeats what is said here."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    # The default waits four minutes for a server that is not there.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return mlflow
