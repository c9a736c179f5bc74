"""The generated games as a source of tasks: ids, and task lists that are kept on disk."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from agentcredit.envs.alfworld_games import Game
from agentcredit.envs.alfworld_generator import GENERATOR_VERSION, SIZES, SPLITS, build_game, game_id
from agentcredit.envs.alfworld_package import package
from agentcredit.envs.base import TaskInfo
from agentcredit.files import atomic_write_text


class GeneratedGames:
    """Games of one size; see :mod:`agentcredit.envs.alfworld_generator`."""

    official = False

    def __init__(self, size: str, home: Path) -> None:
        if size not in SIZES:
            raise ValueError(f"alfworld has no size {size!r}; known: {', '.join(SIZES)}")
        self._size = size
        self._lists = home / "data" / "alfworld"
        self.version = f"{size}-v{GENERATOR_VERSION}"
        self.data_source = f"generated games ({size}, v{GENERATOR_VERSION})"
        self.default_max_turns = SIZES[size].default_max_turns
        self.counts = dict(SPLITS)

    def tasks(self, split: str) -> list[TaskInfo]:
        """All tasks of a split, sorted by id. Raises KeyError for an unknown split.

        The list is a pure function of the package's and the generator's versions, and kept under both.
        """
        path = self._lists / f"{self.version}-{split}-alfworld-{package().version}.json"
        try:
            return [TaskInfo(*row) for row in json.loads(path.read_text(encoding="utf-8"))]
        except (FileNotFoundError, json.JSONDecodeError):
            pass
        tasks = [build_game(self._size, split, index).info() for index in range(SPLITS[split])]
        rows = [[task.id, task.type, task.goal, task.content_hash] for task in tasks]
        atomic_write_text(path, json.dumps(rows))
        return tasks

    def game(self, task_id: str) -> Game:
        """One game. Raises KeyError for an id of another size, version or split."""
        found = re.fullmatch(r"[^/]+/(\w+)/(\d{6})", task_id)
        if not found or task_id != game_id(self._size, found[1], int(found[2])):
            raise KeyError(task_id)
        return _build(self._size, found[1], int(found[2]))


_build = lru_cache(maxsize=64)(build_game)
