"""AHEAD's analyser: what it is asked, what is read from its answers, and what becomes of bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agentcredit.methods.failures import AGAIN, HINT_WORDS, analyse, prompt_of, read
from tests.methods.build import episode, turn, walk

GOOD = '[{"step": 2, "wrong": "The key is left.", "instead": "take the key"}]'


def test_what_the_analyser_is_asked():
    first = turn("A", "B", observation="You see a key.", after="You are in a hall.", action="go north")
    second = replace(turn("B", "B", observation="You are in a hall.", after=" ".join(["wall"] * 99)), valid=False)
    prompt = prompt_of(episode([first, replace(second, action="open")], False), 3)
    assert "Task: fetch it" in prompt
    assert "Step 1\nIt saw: You see a key.\nIt did: go north\nResult: You are in a hall." in prompt
    assert "Step 2\nIt saw: You are in a hall.\nIt did: open (not a possible action)\nResult: wall wall" in prompt
    assert prompt.count("wall") == 60
    assert "without success (score 0, max turns)" in prompt
    assert "at most 3 objects" in prompt


def test_what_is_read_from_an_answer():
    assert read(GOOD, 2, 3) == {1: "The key is left. Instead: take the key"}
    assert read(f"Sure!\n```json\n{GOOD}\n```", 2, 3) == {1: "The key is left. Instead: take the key"}
    assert read("[]", 2, 3) == {}
    assert read(GOOD, 1, 3) == {}  # the episode has no step 2
    late_first = '[{"step": 3, "instead": "c"}, {"step": 1, "instead": "a"}, {"step": 1, "instead": "b"}]'
    assert read(late_first, 3, 1) == {0: "Instead: a"}
    long = read('[{"step": 1, "instead": "' + "go " * 50 + '"}]', 1, 3)
    assert long == {0: "Instead: " + " ".join(["go"] * HINT_WORDS) + " …"}


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I am not sure.",
        '[{"step": 1',
        '["step 1"]',
        '[{"step": "1", "instead": "a"}]',
        '[{"step": true, "instead": "a"}]',
        '[{"step": 1}]',
        '{"step": 1, "instead": "a"}',
        "[" * 100000 + "]" * 100000,
    ],
)
def test_what_is_no_answer(answer: str):
    assert read(answer, 3, 3) is None


def test_a_bad_answer_is_asked_for_once_more_and_then_given_up():
    episodes = [walk(["A", "B", "C"], False), walk(["A", "C", "D"], False), walk(["A", "D", "E"], False)]
    replies = {"A>B": ["?", GOOD], "A>C": ["?", "??"], "A>D": ["[]"]}
    rounds: list[int] = []

    def ask(prompts: Sequence[str]) -> list[str]:
        rounds.append(len(prompts))
        assert all(prompt.endswith(AGAIN) == (len(rounds) == 2) for prompt in prompts)
        return [
            next(left for key, left in replies.items() if f"It did: {key}\n" in prompt).pop(0) for prompt in prompts
        ]

    found = analyse(episodes, ask, 3)
    assert found.hints == [{1: "The key is left. Instead: take the key"}, {}, {}]
    assert (found.calls, found.unread, rounds) == (5, 1, [3, 2])
    assert analyse([], ask, 3).calls == 0
