"""Who reads failed episodes for a method: the start model, frozen, or a model behind an endpoint (``method.analyser``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentcredit.config import RunConfig
from agentcredit.files import atomic_write_json
from agentcredit.methods.registry import START
from agentcredit.policies.base import Request
from agentcredit.policies.chat import Chat
from agentcredit.policies.dialogue import Template
from agentcredit.policies.transformers import TransformersPolicy

ANSWER_TOKENS = 400
AT_ONCE = 8
"""Prompts that the start model answers in one batch, or questions under way to an endpoint."""

Ask = Callable[[Sequence[str]], list[str]]


def analyser_of(config: RunConfig, source: str | Path, cache: Path) -> Ask | None:
    """The run's analyser, or None where it has none.

    Args:
        config: ``method.analyser`` and what belongs to it.
        source: folder or hub id of the weights that training started from.
        cache: folder where an endpoint's answers are kept.
    """
    method = config.method
    if not method.analyser:
        return None
    if method.analyser == START:
        return StartModel(config, source)
    return Remembered(Chat(method.analyser, method.analyser_model, method.analyser_key_env), cache)


@dataclass
class StartModel:
    """The weights that training started from, greedy, in a copy that is never trained; loaded when first asked."""

    config: RunConfig
    source: str | Path

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """One answer a prompt, of at most ``ANSWER_TOKENS``."""
        template, policy = self._loaded
        answers: list[str] = []
        for start in range(0, len(prompts), AT_ONCE):
            requests = [
                Request(f"analyser/{k}", template.opening("", prompt), ("analyser", k), ANSWER_TOKENS, temperature=0.0)
                for k, prompt in enumerate(prompts[start : start + AT_ONCE])
            ]
            answers += [template.decode(response.ids) for response in policy.answer(requests)]
        return answers

    @cached_property
    def _loaded(self) -> tuple[Template, TransformersPolicy]:
        from agentcredit.policies.models import load

        model, tokenizer = load(self.config.policy, self.source)
        template = Template(tokenizer, self.config.policy.model)
        return template, TransformersPolicy(model.requires_grad_(False), template)


@dataclass
class Remembered:
    """A model behind an endpoint, whose answers are kept on disk by what was asked.

    Endpoints do not repeat themselves to the letter: a resumed run has to find the answers that it got, and pays once.
    """

    chat: Chat
    folder: Path

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """One answer a prompt; a question that stands twice among them is asked once.

        Raises:
            MissingError: the key, the model or the endpoint is not there.
            RunFailed: the endpoint does not answer.
        """
        asked = list(dict.fromkeys(prompts))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = dict(zip(asked, pool.map(self._one, asked), strict=True))
        return [answers[prompt] for prompt in prompts]

    def _one(self, prompt: str) -> str:
        question = [self.chat.base_url, self.chat.model, ANSWER_TOKENS, prompt]
        path = self.folder / f"{hashlib.sha256(json.dumps(question).encode()).hexdigest()[:32]}.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))["answer"]
        answer = self.chat.ask([{"role": "user", "content": prompt}], temperature=0, max_tokens=ANSWER_TOKENS)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(path, {"model": self.chat.model, "prompt": prompt, "answer": answer})
        return answer
