"""A game of ALFWorld as data, whoever made it: the generator or the official release."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from agentcredit.envs.alfworld_package import TOOLS
from agentcredit.envs.base import TaskInfo

_TASK_SENTENCE = re.compile(r"Your task is to: ([^\"\n]*?)\.?\"")


@dataclass(frozen=True)
class Game:
    """One game.

    ``problem``, ``domain``  PDDL texts.  ``grammar``  TextWorld's grammar (twl2), the task sentence in it.
    ``goal``         the task sentence without its full stop, as in ``put a hot egg in countertop``.
    ``target``, ``destination``, ``lamp``  types that the task names, in lower case; empty where it names none.
    ``walkthrough``  a stored winning command list, or empty.
    """

    id: str
    type: str
    goal: str
    problem: str
    domain: str
    grammar: str
    target: str
    destination: str
    lamp: str
    walkthrough: tuple[str, ...] = ()

    @property
    def needed(self) -> int:
        """How many objects the task asks for."""
        return 2 if self.type == "pick_two_obj_and_place" else 1

    @property
    def tool(self) -> tuple[str, str] | None:
        """Verb and receptacle type of the property that the task asks for, as in ``("heat", "microwave")``."""
        return TOOLS.get(self.type)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of domain, grammar and problem: its first 16 hex digits."""
        text = "\0".join((self.domain, self.grammar, self.problem))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def info(self) -> TaskInfo:
        """The game as a task list shows it."""
        return TaskInfo(self.id, self.type, self.goal, self.content_hash)


class Games(Protocol):
    """Where games come from."""

    data_source: str
    version: str
    official: bool
    default_max_turns: int
    counts: dict[str, int]

    def tasks(self, split: str) -> list[TaskInfo]:
        """All tasks of a split, sorted by id. Raises KeyError for an unknown split."""
        ...

    def game(self, task_id: str) -> Game:
        """One game. Raises KeyError for an unknown id."""
        ...


def task_sentence(grammar: str) -> str:
    """The sentence after ``Your task is to:`` in a game's grammar, without its full stop.

    Raises:
        ValueError: the grammar has none.
    """
    found = _TASK_SENTENCE.search(grammar)
    if not found:
        raise ValueError("the game's grammar has no sentence 'Your task is to: ...'")
    return found.group(1).strip()
