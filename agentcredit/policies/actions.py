"""From a response to an action: reading it out of the text, and restricting its tokens while it is sampled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ACTION = re.compile(
    r"<action>((?:(?!<action>).)*?)</action>", re.DOTALL
)  # the innermost pair: a thought may hold a tag
THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
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
    return f"{THINK_OPEN}{thought}{THINK_CLOSE}{ACTION_OPEN}{action}{ACTION_CLOSE}"


def parse(text: str) -> Parsed:
    """Reads thought and action; the last complete ``<action>`` pair counts, lower-cased.

    Without a pair the last 30 characters are sent, so that the environment answers something (as verl-agent does), and the turn is not well formed.
    """
    thought, actions = _THINK.search(text), _ACTION.findall(text)
    said = thought.group(1).strip() if thought else ""
    if not actions:
        return Parsed(said, " ".join(text[-_TAIL_SENT_ON_FAILURE:].lower().split()), False)
    return Parsed(said, " ".join(actions[-1].lower().split()), thought is not None)


@dataclass
class TrieNode:
    """One token position of a restricted stretch: which ids may follow, and where they lead.

    ``depth`` is the number of tokens of the longest way to the end; a node with one child leaves no choice.
    """

    children: dict[int, TrieNode] = field(default_factory=dict)
    allowed: tuple[int, ...] = ()
    depth: int = 0


class ActionTries:
    """Tries over the tokens of admissible actions, each closed by ``</action>`` and the end mark.

    With restricted sampling a response is ``<think>`` free text ``</think><action>`` one of the actions
    ``</action>`` and the end mark: only the thought is free, so every turn is well formed and its action admissible.
    """

    def __init__(self, encode: Callable[[str], list[int]], end_id: int, size: int = 4096) -> None:
        self._encode = lru_cache(maxsize=65536)(lambda text: tuple(encode(text)))
        self._end_id = end_id
        self._build = lru_cache(maxsize=size)(self._make)

    def actions(self, actions: Sequence[str], before: str = "") -> TrieNode:
        """The trie of ``before`` followed by one of these actions; equal arguments share one."""
        return self._build(tuple(actions), before)

    def opening(self) -> TrieNode:
        """The chain of ``<think>``, which begins a restricted response."""
        return self._opening

    @cached_property
    def _opening(self) -> TrieNode:
        return _trie([self._encode(THINK_OPEN)])

    def _make(self, actions: tuple[str, ...], before: str) -> TrieNode:
        head = self._encode(before) if before else ()
        return _trie([(*head, *self._encode(action + ACTION_CLOSE), self._end_id) for action in actions])


def _trie(sequences: Sequence[tuple[int, ...]]) -> TrieNode:
    root = TrieNode()
    for sequence in sequences:
        node = root
        for place, token in enumerate(sequence):
            node.depth = max(node.depth, len(sequence) - place)
            node = node.children.setdefault(token, TrieNode())
    stack = [root]
    while stack:
        node = stack.pop()
        node.allowed = tuple(sorted(node.children))
        stack.extend(node.children.values())
    return root
