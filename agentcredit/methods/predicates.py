"""Statements about a role-level state that a program can check: ``hold = target``, ``placed >= 1``.

A lifted key (``Turn.lifted_key``) has named fields; which, is known for each environment here. A written reference graph
(``distilled``) says with them where its milestones are.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentcredit.errors import UsageError, nearest

Value = int | str
Fields = Mapping[str, Value]

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_STATEMENT = re.compile(r"\s*([a-z_]\w*)\s*(>=|<=|!=|==|=|>|<)\s*(.+?)\s*")


@dataclass(frozen=True)
class Field:
    """A field of a lifted key: what it means, and its words; a field without words is a whole number."""

    meaning: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vocabulary:
    """An environment's fields, and how they are read from a key (KeyError or ValueError: it is not of this form)."""

    fields: Mapping[str, Field]
    read: Callable[[str], Fields]

    def parse(self, key: str) -> Fields | None:
        """The fields of a key, or None where it is not of the environment's form."""
        try:
            return self.read(key)
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True)
class Predicate:
    """``field operator value``. A field that a state does not have makes it false."""

    field: str
    sign: str
    value: Value

    @classmethod
    def parse(cls, text: str, vocabulary: Vocabulary) -> Predicate:
        """The predicate of a text.

        Raises:
            UsageError: it is not of the form, or names a field or a word that the environment does not have.
        """
        match = _STATEMENT.fullmatch(text)
        if match is None:
            raise UsageError(f"'{text}' is not a predicate: write FIELD = VALUE, or with !=, <, <=, > or >=.")
        name, sign, value = match[1], match[2].replace("==", "="), match[3]
        if name not in vocabulary.fields:
            raise UsageError(f"'{text}' names an unknown field '{name}'.{nearest(name, vocabulary.fields)}")
        words = vocabulary.fields[name].words
        if not words:
            if not re.fullmatch(r"-?\d+", value):
                raise UsageError(f"'{text}' compares the number '{name}' with '{value}', which is none.")
            return cls(name, sign, int(value))
        if value not in words:
            raise UsageError(f"'{text}' gives '{name}' an unknown value '{value}'.{nearest(value, words)}")
        if sign not in ("=", "!="):
            raise UsageError(f"'{text}' orders words: '{name}' can only be compared by = and !=.")
        return cls(name, sign, value)

    def holds(self, fields: Fields) -> bool:
        """Whether it is true of a state."""
        return self.field in fields and _OPERATORS[self.sign](fields[self.field], self.value)


def vocabulary(env: str) -> Vocabulary:
    """The fields of an environment's lifted keys.

    Raises:
        UsageError: they are not known.
    """
    if env not in _VOCABULARIES:
        raise UsageError(
            f"The fields of lifted keys of environment '{env}' are not known.{nearest(env, _VOCABULARIES)}"
        )
    return _VOCABULARIES[env]


def _alfworld(key: str) -> Fields:
    """``seen 1 | hold target | ready 1 | at destination shut | placed 0 | lamp 0`` (envs/alfworld_state.py)."""
    parts = dict(part.split(" ", 1) for part in key.split(" | "))
    role, _, shut = parts["at"].partition(" ")
    numbers = {name: int(parts[name]) for name in ("seen", "ready", "placed", "lamp") if name in parts}
    return {**numbers, "hold": parts["hold"], "at": role, "shut": int(bool(shut))}


def _scienceworld(key: str) -> Fields:
    """``30|1100|01``: score by tens, ordered sub-goals met, optional sub-goals met (envs/scienceworld.py)."""
    score, ordered, optional = key.split("|")
    return {
        "score": -1 if score == "failed" else int(score),
        "ordered": ordered.count("1"),
        "optional": optional.count("1"),
    }


_VOCABULARIES = {
    "alfworld": Vocabulary(
        {
            "seen": Field("how many target objects have been seen, at most as many as the task needs (1, or 2)"),
            "hold": Field(
                "what the agent carries: a target object, another one, or nothing", ("target", "other", "nothing")
            ),
            "ready": Field(
                "1 if the task asks for no property, or a held target is hot, cool or clean as asked; else 0"
            ),
            "at": Field(
                "where the agent stands: at a receptacle of the destination's type, of the tool's type (microwave, fridge, "
                "sinkbasin), where a target lies, at the desk lamp, or elsewhere",
                ("destination", "tool", "target", "lamp", "elsewhere"),
            ),
            "shut": Field("1 if the receptacle where the agent stands has a door that is closed, else 0"),
            "placed": Field("how many targets lie in the destination with the property asked for"),
            "lamp": Field("tasks with a lamp only: 1 once the lamp has been seen, else 0"),
        },
        _alfworld,
    ),
    "scienceworld": Vocabulary(
        {
            "score": Field("the environment's score by tens, 0 to 100; -1 once the task has failed"),
            "ordered": Field("how many of the task's ordered sub-goals are met"),
            "optional": Field("how many of the task's optional sub-goals are met"),
        },
        _scienceworld,
    ),
}
