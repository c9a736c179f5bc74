"""A language model reads failed episodes and names the steps that went wrong: AHEAD's analyser (docs/methods/ahead.md).

It is asked in words and answers in JSON. An answer that cannot be read is asked for once more, then taken as no finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentcredit.episodes import Episode

SHOWN_WORDS = 60
"""Words of each observation that the analyser is shown."""
HINT_WORDS = 40
"""Words of an advice at most, as it is told; a longer one is cut."""

AGAIN = "\n\nYour last answer to this was not a JSON array of that form. Answer with the JSON array alone."


@dataclass(frozen=True)
class Findings:
    """``hints[i]``: turn (from 0) to hint of episode i. ``calls``: questions asked; ``unread``: episodes given up."""

    hints: list[dict[int, str]]
    calls: int
    unread: int


def analyse(episodes: Sequence[Episode], ask: Callable[[Sequence[str]], list[str]], limit: int) -> Findings:
    """What the analyser finds in each episode, at most ``limit`` steps."""
    prompts = [prompt_of(episode, limit) for episode in episodes]
    found: list[dict[int, str] | None] = [None] * len(episodes)
    calls = 0
    for suffix in ("", AGAIN):
        open_ones = [i for i, hints in enumerate(found) if hints is None]
        if not open_ones:
            break
        calls += len(open_ones)
        answers = ask([prompts[i] + suffix for i in open_ones])
        for i, answer in zip(open_ones, answers, strict=True):
            found[i] = read(answer, len(episodes[i].turns), limit)
    return Findings([hints or {} for hints in found], calls, sum(hints is None for hints in found))


def prompt_of(episode: Episode, limit: int) -> str:
    """The task, the numbered steps with what was seen, done and answered, how it ended, and what is wanted."""
    lines = [
        "An agent failed a task. Find the steps that went wrong.",
        "",
        f"Task: {episode.task.goal}",
    ]
    for number, turn in enumerate(episode.turns, start=1):
        lines += [
            "",
            f"Step {number}",
            f"It saw: {_shown(turn.observation)}",
            f"It did: {turn.action}" + ("" if turn.valid else " (not a possible action)"),
            f"Result: {_shown(turn.next_observation)}",
        ]
    lines += [
        "",
        f"The episode ended without success (score {episode.score:g}, {episode.stop_reason.value.replace('_', ' ')}).",
        "",
        f"Answer with a JSON array of at most {limit} objects, one for each step that went wrong, the earliest first: "
        '[{"step": <number>, "wrong": "<what went wrong>", '
        f'"instead": "<what to do instead, at most {HINT_WORDS} words>"}}]. '
        "Do not give away the answer to the task. Write nothing besides the array. If you are not sure, answer [].",
    ]
    return "\n".join(lines)


def read(answer: str, n_turns: int, limit: int) -> dict[int, str] | None:
    """The hints in an answer, by turn from 0; None where there is no array of such objects in it.

    Text around the array, such as the marks of a code block, is passed over. Steps that the episode does not have are left
    out, and so is what comes after the ``limit`` earliest.
    """
    start, end = answer.find("["), answer.rfind("]")
    try:
        entries = json.loads(answer[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    hints: dict[int, str] = {}
    for entry in entries:
        step, wrong, instead = (entry.get(name) for name in ("step", "wrong", "instead"))
        if isinstance(step, bool) or not isinstance(step, int) or not isinstance(instead, str):
            return None
        if 1 <= step <= n_turns and instead.strip():
            said = [_words(wrong)] if isinstance(wrong, str) and wrong.strip() else []
            hints.setdefault(step - 1, " ".join([*said, f"Instead: {_words(instead)}"]))
    return {turn: hints[turn] for turn in sorted(hints)[:limit]}


def _words(text: str) -> str:
    words = text.split()
    return " ".join(words[:HINT_WORDS]) + (" …" if len(words) > HINT_WORDS else "")


def _shown(text: str) -> str:
    words = text.split()
    return " ".join(words[:SHOWN_WORDS]) + (" …" if len(words) > SHOWN_WORDS else "")
