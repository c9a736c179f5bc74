"""The official games (json_2.1.1 with ``game.tw-pddl`` files), where a user has them.

A task's id is its folder below ``json_2.1.1``, as in ``valid_seen/pick_..-10/trial_T2019..``. Which games count is
upstream's rule (``AlfredTWEnv.collect_game_files``): six task types, no movable receptacles, no slicing, marked
solvable. The counts that papers report on are checked, so a partial download is never taken for the benchmark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentcredit.envs.alfworld_games import Game, task_sentence
from agentcredit.envs.alfworld_package import TASK_TYPES
from agentcredit.envs.base import TaskInfo
from agentcredit.files import atomic_write_text

RELEASE = "json_2.1.1"
COUNTS = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}

_HELP = "Fetch the games with `agentcredit envs setup alfworld --official`, or point ALFWORLD_DATA at their folder."


class OfficialGames:
    """The official games below a folder.

    Args:
        folder: the data folder, or ``json_2.1.1`` itself.
        home: where the lists of games are kept: reading 3,827 files takes a while, and need not be done twice.

    Raises:
        ValueError: the folder has no games, or some are missing; the sentence says which and how many.
    """

    official = True
    version = RELEASE
    data_source = f"official games ({RELEASE})"
    default_max_turns = 50

    def __init__(self, folder: Path, home: Path) -> None:
        self.counts = dict(COUNTS)
        self._lists = home / "data" / "alfworld"
        self._root = _release_folder(folder)
        self._check({split: len(self._candidates(split)) for split in COUNTS}, at_least=True)

    def tasks(self, split: str) -> list[TaskInfo]:
        """All tasks of a split, sorted by id.

        Raises:
            KeyError: an unknown split.
            ValueError: the number of solvable games is not the release's.
        """
        expected = COUNTS[split]
        files = self._candidates(split)
        path = self._lists / f"official-{split}-{_fingerprint(files)}.json"
        if path.exists():
            return [TaskInfo(*row) for row in json.loads(path.read_text(encoding="utf-8"))]
        found = [self._read(file.parent).info() for file in files if _counts(file)]
        if len(found) != expected:
            self._check({split: len(found)}, at_least=False)
        atomic_write_text(path, json.dumps([[task.id, task.type, task.goal, task.content_hash] for task in found]))
        return found

    def game(self, task_id: str) -> Game:
        """One game. Raises KeyError for an id that is no folder with a game."""
        split = task_id.split("/")[0]
        if split not in COUNTS or ".." in task_id or not (self._root / task_id / "game.tw-pddl").is_file():
            raise KeyError(task_id)
        return self._read(self._root / task_id)

    def _read(self, folder: Path) -> Game:
        return read_game(folder, folder.relative_to(self._root).as_posix())

    def _candidates(self, split: str) -> list[Path]:
        """Game files of a split that upstream would look into, sorted."""
        files = (self._root / split).glob("*/*/game.tw-pddl")
        return sorted(file for file in files if "movable" not in file.parts[-3] and "Sliced" not in file.parts[-3])

    def _check(self, found: dict[str, int], at_least: bool) -> None:
        wrong = [
            f"{split} has {count} of {COUNTS[split]}"
            for split, count in found.items()
            if count < COUNTS[split] or (count > COUNTS[split] and not at_least)
        ]
        if wrong:
            raise ValueError(
                f"The official ALFWorld games in {self._root} are not complete: {', '.join(wrong)}. {_HELP}"
            )


@lru_cache(maxsize=64)
def read_game(folder: Path, name: str) -> Game:
    """The game in a folder with ``game.tw-pddl`` and ``traj_data.json``.

    Raises:
        ValueError: a file is not of the release's form.
    """
    try:
        data: dict[str, Any] = json.loads((folder / "game.tw-pddl").read_text(encoding="utf-8"))
        record: dict[str, Any] = json.loads((folder / "traj_data.json").read_text(encoding="utf-8"))
        names = record["pddl_params"]
        return Game(
            id=name,
            type=record["task_type"],
            goal=task_sentence(data["grammar"]),
            problem=data["pddl_problem"],
            domain=data["pddl_domain"],
            grammar=data["grammar"],
            target=names["object_target"].lower(),
            destination=names["parent_target"].lower(),
            lamp=names["toggle_target"].lower(),
            walkthrough=tuple(data.get("walkthrough") or ()),
        )
    except (KeyError, json.JSONDecodeError, FileNotFoundError) as error:
        raise ValueError(f"{folder} does not hold an ALFWorld game of {RELEASE}: {error!r}") from error


def _counts(file: Path) -> bool:
    record = json.loads((file.parent / "traj_data.json").read_text(encoding="utf-8"))
    return record["task_type"] in TASK_TYPES and bool(json.loads(file.read_text(encoding="utf-8")).get("solvable"))


def _release_folder(folder: Path) -> Path:
    for root in (folder / RELEASE, folder):
        if all((root / split).is_dir() for split in COUNTS):
            return root
    raise ValueError(f"There are no official ALFWorld games in {folder}: no {RELEASE}/{', '.join(COUNTS)}. {_HELP}")


def _fingerprint(files: Sequence[Path]) -> str:
    """Changes when any game file does, so a list is never out of date."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
