"""Has a language model write the reference graph of a task type, from the environment's fields and demonstrations.

The answer is checked (``distilled``); one that does not pass goes back once, with what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

from agentcredit.envs.base import EnvSpec, ExpertEpisode
from agentcredit.errors import RunFailed, UsageError
from agentcredit.methods.distilled import MilestoneGraph, WrittenGraph, parse
from agentcredit.methods.predicates import Vocabulary
from agentcredit.methods.reference_graph import GOAL

_OBSERVATION = 300  # characters of an observation that are shown


class Asked(Protocol):
    """What answers: ``policies.chat.Chat``."""

    def ask(self, messages: Sequence[dict[str, str]]) -> str:
        """The answer to a conversation."""
        ...


def write_graph(
    chat: Asked, spec: EnvSpec, kind: str, words: Vocabulary, demonstrations: Sequence[tuple[str, ExpertEpisode]]
) -> WrittenGraph:
    """The graph of task type ``kind``; ``demonstrations`` are (goal, expert's episode) pairs.

    Raises:
        RunFailed: the answer is not valid, nor the second one. MissingError, RunFailed: the endpoint's own.
    """
    messages = [{"role": "user", "content": prompt(spec, kind, words, demonstrations)}]
    wrong = ""
    for _ in range(2):
        answer = chat.ask(messages)
        try:
            written: WrittenGraph = parse(WrittenGraph, json_of(answer), "The answer")
            MilestoneGraph(written, words)
        except UsageError as error:
            wrong = str(error)
            complaint = (
                f"That graph cannot be used: {wrong} Answer with the whole corrected JSON object and nothing else."
            )
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": complaint}]
        else:
            return written
    raise RunFailed(f"The model wrote no valid graph of '{kind}', asked twice; the last time: {wrong}")


def prompt(spec: EnvSpec, kind: str, words: Vocabulary, demonstrations: Sequence[tuple[str, ExpertEpisode]]) -> str:
    """What the model is asked: the fields that conditions may use, demonstrations, and the form of the answer."""
    fields = [
        f"- {name}: {field.meaning}" + (f"; one of {', '.join(field.words)}" if field.words else "; a whole number")
        for name, field in words.fields.items()
    ]
    shown = [_shown(number, goal, episode, words) for number, (goal, episode) in enumerate(demonstrations, start=1)]
    example = {
        "milestones": [{"name": "NAME", "when": ["FIELD = VALUE", "FIELD >= NUMBER"]}],
        "edges": [["NAME", "NAME"], ["NAME", GOAL]],
    }
    return "\n".join(
        [
            f"An agent solves tasks of type '{kind}' in the text environment '{spec.name}'. Write a graph of milestones that "
            "shows how far along it is, for every task of this type.",
            "",
            spec.instructions,
            "",
            "A state of the environment is described by these fields:",
            *fields,
            "",
            *shown,
            "",
            "Answer with one JSON object of this form and nothing else:",
            json.dumps(example),
            "",
            "milestones: in order, from the start of a task on. 'when' lists conditions that all hold there, each a field, one "
            "of = != < <= > >= (words: = or != only) and a value. The first milestone has an empty 'when': it always holds. "
            "A state counts as the furthest milestone whose conditions hold.",
            f"edges: from a milestone to the next ones; the last leads to {GOAL}. From every milestone there is a way to {GOAL}.",
        ]
    )


def json_of(answer: str) -> str:
    """The JSON object in an answer that may have thoughts, words or a fence around it."""
    answer = re.sub(r"<think>.*?</think>", "", answer, flags=re.DOTALL)
    start, end = answer.find("{"), answer.rfind("}")
    return answer[start : end + 1] if 0 <= start < end else answer


def _shown(number: int, goal: str, episode: ExpertEpisode, words: Vocabulary) -> str:
    lines = [f"Demonstration {number}: {goal}"]
    for t, result in enumerate(episode.results):
        fields = words.parse(result.lifted_key) if result.lifted_key is not None else None
        told = ", ".join(f"{name} = {value}" for name, value in fields.items()) if fields else "unknown"
        seen = " ".join(result.observation.split())[:_OBSERVATION]
        lines.append(f"  state: {told}\n  observation: {seen}")
        lines.append(f"  action: {episode.steps[t].action}" if t < len(episode.steps) else "  the task is done")
    return "\n".join(lines)
