"""From a response to an action: reading it out of the text, and restricting its tokens while it is sampled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)
ACTION_OPEN = "<action>"
ACTION_CLOSE = "</action>"
_TAIL_SENT_ON_FAILURE = 30


@dataclass(frozen=True)
class Parsed:
    """A response read. ``well_formed`` says that both tag pairs were there, which is the format's validity."""

    thought: str
    action: str
    well_formed: bool


def response_text(thought: str, action: str) -> str:
    """The answer form of a thought and an action; what warm starts clone."""
    return f"<think>{thought}</think>{ACTION_OPEN}{action}{ACTION_CLOSE}"


def parse(text: str) -> Parsed:
    """Reads thought and action; the last complete ``<action>`` pair counts, lower-cased.

    Without a pair the last 30 characters are sent, so that the environment answers something (as verl-agent does,
    methods.md §9.1), and the turn is not well formed.
    """
    thought, actions = _THINK.search(text), _ACTION.findall(text)
    said = thought.group(1).strip() if thought else ""
    if not actions:
        return Parsed(said, " ".join(text[-_TAIL_SENT_ON_FAILURE:].lower().split()), False)
    return Parsed(said, " ".join(actions[-1].lower().split()), thought is not None)


@dataclass
class TrieNode:
    """One token position of the admissible actions: which ids may follow, and where they lead."""

    children: dict[int, TrieNode] = field(default_factory=dict)
    allowed: tuple[int, ...] = ()


class ActionTries:
    """Tries over the tokens of admissible actions, each closed by ``</action>`` and the end mark.

    The trie is entered where the response so far ends with ``<action>``; from there to the end mark every token is one of
    the trie's. A tokenizer may join ``>`` to the next letters; a response that does so is simply not restricted.
    """

    def __init__(self, encode: Callable[[str], list[int]], end_id: int, size: int = 4096) -> None:
        self._encode = lru_cache(maxsize=65536)(lambda action: tuple(encode(action + ACTION_CLOSE)))
        self._end_id = end_id
        self._build = lru_cache(maxsize=size)(self._make)

    def root(self, actions: Sequence[str]) -> TrieNode:
        """The trie of these actions; equal lists share one."""
        return self._build(tuple(actions))

    def _make(self, actions: tuple[str, ...]) -> TrieNode:
        root = TrieNode()
        for action in actions:
            node = root
            for token in (*self._encode(action), self._end_id):
                node = node.children.setdefault(token, TrieNode())
        stack = [root]
        while stack:
            node = stack.pop()
            node.allowed = tuple(sorted(node.children))
            stack.extend(node.children.values())
        return root
