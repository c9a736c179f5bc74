"""Task panels: the exact tasks that a number was measured on. Standard library alone.

A panel is a sorted list of task ids with the hash of what each task is made of. Its SHA-256 is that of its canonical
text, one line ``<id> <content hash>`` per task; where a panel is committed (``panels/<env>/<data source>/<split>.txt``)
the file *is* that text, so ``sha256sum`` on the file and the hash under a table agree. A split that no longer equals its
committed panel is an error that names the tasks: text and files of benchmarks do change between releases.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentcredit.envs.base import EnvClient, TaskInfo
from agentcredit.errors import MissingError, UsageError, nearest

Role = Literal["train", "dev", "test"]

COMMITTED = Path(__file__).with_name("panels")

_NAMED = 8

_ROLES: dict[str, dict[str, Role]] = {
    # Its second validation split has rooms that training never shows: the harder claim, so it is the one kept for last.
    "alfworld": {"train": "train", "valid_seen": "dev", "valid_unseen": "test"},
}
_COMMON_ROLES: dict[str, Role] = {"train": "train", "dev": "dev", "valid": "dev", "validation": "dev", "test": "test"}


@dataclass(frozen=True)
class Panel:
    """The tasks of one evaluation.

    ``name``    the split, with what narrowed it: ``valid_seen``, ``valid_seen[48]``, ``dev{boil,melt}[48]``.
    ``tasks``   (id, content hash), sorted by id.
    ``partial`` whether the split has more tasks than these.
    """

    env: str
    split: str
    data_source: str
    name: str
    tasks: tuple[tuple[str, str], ...]
    partial: bool = False

    @property
    def text(self) -> str:
        """The canonical text: one line per task."""
        return "".join(f"{task_id} {content_hash}\n" for task_id, content_hash in self.tasks)

    @property
    def sha256(self) -> str:
        """SHA-256 of the canonical text, 64 hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def select(self, client: EnvClient) -> list[TaskInfo]:
        """The panel's tasks as the environment lists them now, in the panel's order.

        Raises:
            MissingError: a task is gone or has changed since the panel was made; its sentence names them.
        """
        now = {task.id: task for task in client.tasks(self.split)}
        check_equal(self, [now[task_id] for task_id, _ in self.tasks if task_id in now])
        return [now[task_id] for task_id, _ in self.tasks]


def build_panel(client: EnvClient, split: str, task_types: Collection[str] = (), limit: int = 0) -> Panel:
    """The panel of a split, or of a part of it.

    Args:
        client: the environment.
        split: one of its splits.
        task_types: keep only tasks of these types; empty: all.
        limit: keep only this many, chosen by :func:`sample`; 0: all.

    Raises:
        UsageError: the split or a task type is not known.
        MissingError: the split differs from its committed panel.
    """
    spec = client.spec()
    tasks = client.tasks(split)
    full = Panel(spec.name, split, spec.data_source, split, _pairs(tasks))
    known = committed(spec.name, spec.data_source, split)
    if known is not None:
        check_equal(known, tasks)
    types = sorted(set(task_types))
    for wanted in types:
        if wanted not in spec.task_types:
            raise UsageError(f"'{spec.name}' has no task type '{wanted}'.{nearest(wanted, spec.task_types)}")
    chosen = [task for task in tasks if not types or task.type in types]
    if limit:
        chosen = sample(chosen, limit)
    if len(chosen) == len(tasks):
        return full
    narrowed = f"{{{','.join(types)}}}" if types else ""
    counted = f"[{limit}]" if limit else ""
    return Panel(spec.name, split, spec.data_source, split + narrowed + counted, _pairs(chosen), partial=True)


def sample(tasks: Iterable[TaskInfo], n: int) -> list[TaskInfo]:
    """``n`` tasks, sorted by id, with equal shares for the task types as far as their tasks reach.

    Within a type tasks come in the order of the SHA-256 of their ids; the types take turns. So the choice depends on the
    ids alone, and a smaller sample is part of every larger one. Equal shares, not proportional ones, are our choice:
    ScienceWorld's types have from 2 to 346 dev tasks, and 48 proportional ones would leave out a third of the types.
    """
    by_type: dict[str, list[TaskInfo]] = defaultdict(list)
    for task in sorted(tasks, key=lambda task: _shuffled(task.id)):
        by_type[task.type].append(task)
    ranked = [(rank, _shuffled(task.id), task) for group in by_type.values() for rank, task in enumerate(group)]
    return sorted((task for _, _, task in sorted(ranked, key=lambda item: item[:2])[:n]), key=lambda task: task.id)


def check_equal(known: Panel, tasks: Sequence[TaskInfo]) -> None:
    """Compares tasks as listed now with a panel.

    Raises:
        MissingError: they differ; the sentence counts and names those missing, changed and unexpected.
    """
    before, now = dict(known.tasks), dict(_pairs(tasks))
    found = {
        "missing": sorted(before.keys() - now.keys()),
        "changed": sorted(task_id for task_id in before.keys() & now.keys() if before[task_id] != now[task_id]),
        "unexpected": sorted(now.keys() - before.keys()),
    }
    if any(found.values()):
        parts = "; ".join(f"{len(ids)} {what}: {_some(ids)}" for what, ids in found.items() if ids)
        raise MissingError(
            f"The tasks of '{known.env}' ({known.data_source}) differ from panel {known.name} "
            f"(sha256 {known.sha256[:16]}): {parts}. "
            f"Run `agentcredit envs setup {known.env}` to get the versions that it was made with."
        )


def committed(env: str, data_source: str, split: str) -> Panel | None:
    """The committed panel of a whole split; None where there is none, e.g. for a plug-in's environment.

    Raises:
        MissingError: the file is damaged.
    """
    path = committed_path(env, data_source, split)
    if not path.is_file():
        return None
    try:
        pairs = tuple(
            (task_id, content_hash) for task_id, content_hash in map(str.split, path.read_text().splitlines())
        )
    except ValueError as error:
        raise MissingError(f"The panel {path} is damaged: a line is not `<id> <content hash>`. Reinstall.") from error
    return Panel(env, split, data_source, split, pairs)


def committed_path(env: str, data_source: str, split: str, root: Path = COMMITTED) -> Path:
    """Where a panel is committed."""
    source = re.sub(r"[^a-z0-9.]+", "-", data_source.lower()).strip("-")
    return root / env / source / f"{split}.txt"


def role_of(env: str, split: str) -> Role:
    """What a split is for. An unknown one is taken for a test split: nothing is ever selected on it."""
    return _ROLES.get(env, _COMMON_ROLES).get(split, "test")


def split_for(env: str, role: Role) -> str:
    """The split of an environment that plays a role; by the common names where the environment is not known."""
    return next(split for split, its_role in _ROLES.get(env, _COMMON_ROLES).items() if its_role == role)


def _pairs(tasks: Iterable[TaskInfo]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((task.id, task.content_hash) for task in tasks))


def _shuffled(task_id: str) -> str:
    return hashlib.sha256(task_id.encode()).hexdigest()


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")
