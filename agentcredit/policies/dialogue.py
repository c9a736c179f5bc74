"""Tokens of a conversation: how messages become ids once, and only once.

What the policy sampled is kept by id; only what the environment says is tokenised, as the text that the model's own chat
template puts between two responses. That needs a template that appends: one that rewrites earlier turns (Qwen3 drops old
thoughts) is detected here and refused for the dialogue layout, where it would silently train on tokens never sampled.
"""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache
from typing import Any

from agentcredit.errors import UsageError

_PROBE = "<think>PROBE-THOUGHT</think><action>PROBE-ACTION</action>"


class Template:
    """A tokenizer with its chat template, as the dialogue needs it.

    ``end_ids`` are the ids that end a response; sampling stops at any of them.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError(
                f"Model '{name}' has no chat template; choose an instruction-tuned model with --model, "
                "or add chat_template.jinja to its folder."
            )
        self.tokenizer = tokenizer
        self.name = name
        self.end_id = int(tokenizer.eos_token_id)
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
        self._end_text = tokenizer.convert_ids_to_tokens(self.end_id)
        # Observations repeat a lot between siblings and steps, and rendering a template costs more than a look-up.
        self._reply = lru_cache(maxsize=65536)(lambda user: tuple(self.encode(self._between(user))))
        self.hash = hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest()[:16]

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a response."""
        return frozenset({self.end_id})

    def opening(self, system: str, user: str) -> list[int]:
        """Ids of a conversation's first prompt, up to where the response begins."""
        return self.encode(self._render(_messages(system, user), generate=True))

    def reply(self, user: str, finished: bool) -> list[int]:
        """Ids between a response and the next: what closes it, the user's message, and the start of the answer.

        ``finished`` says that the response ends with the end mark; otherwise the mark is supplied here, untrained.
        """
        ids = self._reply(user)
        return list(ids) if finished else [self.end_id, *ids]

    @property
    def answer_mark(self) -> tuple[int, ...]:
        """Ids that every prompt ends with: the start of the answer."""
        return self._answer_mark

    def aside(self, user: str) -> list[int]:
        """Ids of one more message of the user, and the start of an answer to it.

        They follow a prompt whose ``answer_mark`` is cut off, so that the same context is asked something else.

        Raises:
            UsageError: the template does not take two messages of the user in a row.
        """
        asked = _messages("S", "U")
        head = self._render(asked, generate=False)
        try:
            text = self._render([*asked, {"role": "user", "content": user}], generate=True)
        except Exception as error:  # jinja's own, of a module that is not a dependency of ours
            raise UsageError(
                f"The chat template of '{self.name}' does not take a second message of the user ({error}), which a "
                "forecast of the agent's own actions needs; choose another model with --model."
            ) from error
        if not text.startswith(head):
            raise UsageError(
                f"The chat template of '{self.name}' rewrites a message when another follows, so the context of an "
                "action cannot be asked for a forecast; choose another model with --model."
            )
        return self.encode(text[len(head) :])

    def encode(self, text: str) -> list[int]:
        """Ids of a text; marks such as ``<|im_end|>`` in it are single ids."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Any) -> str:
        """Text of ids, marks of the template left out, tags such as ``<think>`` kept."""
        kept = [i for i in ids if i not in self.end_ids]
        return self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def check_appends(self) -> None:
        """Raises UsageError when the template rewrites earlier turns, so that a dialogue cannot grow by appending."""
        before = [*_messages("S", "U"), {"role": "assistant", "content": _PROBE}]
        head = self._render(_messages("S", "U"), generate=True)
        grown = self._render([*before, {"role": "user", "content": "V"}], generate=True)
        if not grown.startswith(head + _PROBE + self._end_text):
            raise UsageError(
                f"The chat template of '{self.name}' rewrites earlier turns, so a growing dialogue would not hold the "
                "sampled tokens; use --set env.layout=window."
            )

    @cached_property
    def _answer_mark(self) -> tuple[int, ...]:
        asked = _messages("S", "U")
        return tuple(self.encode(self._render(asked, generate=True)[len(self._render(asked, generate=False)) :]))

    def _between(self, user: str) -> str:
        messages = [*_messages("S", "U"), {"role": "assistant", "content": _PROBE}, {"role": "user", "content": user}]
        text = self._render(messages, generate=True)
        return text.split(_PROBE + self._end_text, 1)[1]

    def _render(self, messages: list[dict[str, str]], generate: bool) -> str:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)


def _messages(system: str, user: str) -> list[dict[str, str]]:
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": user}]
