from __future__ import annotations

from typing import Any

import pytest

from agentcredit.errors import UsageError
from agentcredit.policies.dialogue import Template


def test_opening_and_replies_concatenate_to_what_the_template_renders(template: Template, tokenizer: Any):
    answer = "<think>find apple</think><action>open fridge 1</action>"
    whole = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "go"},
            {"role": "user", "content": "you see a fridge 1"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "you see 3"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    ids = [
        *template.opening("go", "you see a fridge 1"),
        *template.encode(answer),
        template.end_id,
        *template.reply("you see 3", finished=True),
    ]
    assert tokenizer.decode(ids) == whole


def test_an_unfinished_response_is_closed_in_the_reply(template: Template):
    assert template.reply("x", finished=False) == [template.end_id, *template.reply("x", finished=True)]


def test_tags_and_marks_are_one_token_each_and_text_survives(template: Template):
    text = "<think>Ünknown words: 47%!</think><action>go to fridge 12</action>"
    ids = template.encode(text)
    assert template.decode([*ids, template.end_id]) == text
    for mark in ("<think>", "</think>", "<action>", "</action>", "<|end|>", "<|user|>"):
        assert len(template.encode(mark)) == 1


def test_a_template_that_rewrites_history_is_refused_for_the_dialogue(tokenizer: Any):
    import copy

    forgetful = copy.deepcopy(tokenizer)
    forgetful.chat_template = tokenizer.chat_template.replace(
        "{{ message['content'] }}", "{{ message['content'].split('</think>')[-1] }}"
    )
    Template(tokenizer, "tiny").check_appends()
    with pytest.raises(UsageError, match=r"rewrites earlier turns.*env\.layout=window"):
        Template(forgetful, "forgetful").check_appends()


def test_a_model_without_chat_template_is_refused(tokenizer: Any):
    import copy

    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(UsageError, match="'base-model' has no chat template"):
        Template(bare, "base-model")


def test_a_context_can_be_asked_something_else(template: Template, tokenizer: Any):
    opening = template.opening("go", "you see a fridge 1")
    mark = template.answer_mark
    assert tuple(opening[len(opening) - len(mark) :]) == mark
    ids = [*opening[: len(opening) - len(mark)], *template.aside("next 3")]
    messages = [
        {"role": r, "content": c} for r, c in (("system", "go"), ("user", "you see a fridge 1"), ("user", "next 3"))
    ]
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def test_a_template_that_insists_on_turns_is_refused_for_asides(tokenizer: Any):
    import copy

    strict = copy.deepcopy(tokenizer)
    strict.chat_template = (
        "{% for m in messages %}{% if loop.index0 and m.role == messages[loop.index0 - 1].role %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    with pytest.raises(UsageError, match=r"'strict' does not take a second message.*roles must alternate"):
        Template(strict, "strict").aside("next 3")
