"""A model that writes graphs, stood in for by prepared answers of a real endpoint's client."""

from __future__ import annotations

import json

import pytest

from agentcredit.envs.base import EnvSpec, ExpertEpisode, ExpertStep, StepResult
from agentcredit.errors import RunFailed
from agentcredit.methods.distill import json_of, prompt, write_graph
from agentcredit.methods.predicates import vocabulary
from agentcredit.methods.reference_graph import GOAL

WORDS = vocabulary("alfworld")
SPEC = EnvSpec("alfworld", "1", "p", True, True, 30, "dialogue", "Use commands.", "won", {"train": 1}, "data", False)
SHOWN = [
    (
        "put an egg in fridge",
        ExpertEpisode(
            "t",
            [ExpertStep("", "take egg 1 from table 1")],
            [
                StepResult("You see\n an egg 1.", lifted_key="seen 1 | hold nothing | ready 1 | at target | placed 0"),
                StepResult("You took it.", lifted_key=None, success=True),
            ],
        ),
    )
]
GOOD = {"milestones": [{"name": "held", "when": ["hold = target"]}], "edges": [["held", GOAL]]}
BAD = {"milestones": [{"name": "held", "when": ["holds = target"]}], "edges": [["held", GOAL]]}


class Answers:
    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def ask(self, messages):
        self.asked.append(list(messages))
        return self.answers.pop(0)


def test_the_prompt_names_the_fields_and_shows_demonstrations():
    text = prompt(SPEC, "pick", WORDS, SHOWN)
    assert "type 'pick'" in text
    assert all(f"- {name}: {field.meaning}" in text for name, field in WORDS.fields.items())
    assert "one of target, other, nothing" in text
    assert "Demonstration 1: put an egg in fridge" in text
    assert (
        "state: seen = 1, ready = 1, placed = 0, hold = nothing, at = target, shut = 0\n  observation: You see an egg 1."
        in text
    )
    assert "action: take egg 1 from table 1" in text
    assert GOAL in text


@pytest.mark.parametrize(
    "around", ["{}", "Here it is:\n```json\n{}\n```\nGood luck!", "<think> { maybe } </think> {}"]
)  # fmt: skip
def test_the_object_is_found_in_an_answer(around):
    body = json.dumps(GOOD)
    assert json_of(around.replace("{}", body)) == body


def test_a_valid_answer_is_taken():
    chat = Answers(json.dumps(GOOD))
    assert write_graph(chat, SPEC, "pick", WORDS, SHOWN).model_dump(mode="json") == GOOD
    assert len(chat.asked) == 1


def test_a_wrong_answer_goes_back_once_with_the_reason():
    chat = Answers(json.dumps(BAD), json.dumps(GOOD))
    assert write_graph(chat, SPEC, "pick", WORDS, SHOWN).milestones[0].name == "held"
    first, second = chat.asked
    assert second[: len(first)] == first
    assert second[1] == {"role": "assistant", "content": json.dumps(BAD)}
    assert "unknown field 'holds'. Did you mean 'hold'" in second[2]["content"]


def test_two_wrong_answers_are_the_end():
    chat = Answers("I cannot do that.", json.dumps(BAD), json.dumps(GOOD))
    with pytest.raises(RunFailed, match=r"no valid graph of 'pick', asked twice; the last time: .*'holds'"):
        write_graph(chat, SPEC, "pick", WORDS, SHOWN)
    assert len(chat.asked) == 2
