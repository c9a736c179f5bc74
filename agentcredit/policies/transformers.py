"""The embedded policy: batched sampling with a transformers model, its key-value cache kept across turns.

All live episodes advance in lockstep and in a fixed order. Sessions that begin together form a cohort, which shares one
batched cache (``cohort.py``); each turn feeds only the tokens that are new since the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from agentcredit.policies.actions import ACTION_OPEN, THINK_CLOSE, ActionTries, TrieNode
from agentcredit.policies.base import Request, Response
from agentcredit.policies.cohort import Cohort, trunks_of
from agentcredit.policies.decoding import shared_heads
from agentcredit.policies.dialogue import Template
from agentcredit.policies.noise import uniforms
from agentcredit.policies.sampling import draw

if TYPE_CHECKING:
    import torch

_TAIL_TOKENS = 12  # tokens decoded to see whether the response has just closed its thought


class TransformersPolicy:
    """Samples from a causal language model of transformers, in this process."""

    name = "transformers"
    lockstep = True

    def __init__(self, model: Any, template: Template) -> None:
        self.model = model
        self.template = template
        self.tries = ActionTries(template.encode, template.end_id)
        self._queue: list[Request] = []
        self._cohorts: dict[str, Cohort] = {}
        close_ids = template.encode(THINK_CLOSE)
        # One id for the tag (the tiny model's tokenizer) makes the test for a closed thought a comparison.
        self.close_id = close_ids[0] if len(close_ids) == 1 else None

    def submit(self, requests: Sequence[Request]) -> None:
        """Queues requests."""
        self._queue.extend(requests)

    def collect(self) -> list[Response]:
        """Samples all queued requests; responses in the order of submission."""
        requests, self._queue = self._queue, []
        by_cohort: dict[int, tuple[Cohort, list[Request]]] = {}
        fresh: list[Request] = []
        for request in requests:
            cohort = self._cohorts.get(request.session)
            if cohort is not None and cohort.continues(request):
                by_cohort.setdefault(id(cohort), (cohort, []))[1].append(request)
            else:
                self.release(request.session)
                fresh.append(request)
        if fresh:
            cohort = Cohort([request.session for request in fresh])
            self._cohorts |= dict.fromkeys(cohort.row_of, cohort)
            by_cohort[id(cohort)] = (cohort, fresh)
        answers: dict[str, Response] = {}
        with self._sampling():
            for cohort, asked in by_cohort.values():
                answers |= self._generate(cohort, asked)
        return [answers[request.session] for request in requests]

    def answer(self, requests: Sequence[Request]) -> list[Response]:
        """Responses to contexts that are asked but once. What neighbours begin with alike goes through the model once.

        For a method that asks at every turn of an episode: give an episode's turns one after another.
        """
        contexts = [request.context_ids for request in requests]
        trunks = trunks_of(contexts)
        roots = sorted({trunk for trunk, _ in trunks})
        with self._sampling():
            trunk = Cohort([requests[k].session for k in roots])
            fed = {row: list(contexts[k][:-1]) for row, k in enumerate(roots) if len(contexts[k]) > 1}
            if fed:
                trunk.feed(self.model, fed, self.template.pad_id)
            cohort = trunk.branch(
                [(roots.index(root), length) for root, length in trunks], [request.session for request in requests]
            )
            answers = self._generate(cohort, requests)
        return [answers[request.session] for request in requests]

    def release(self, session: str) -> None:
        """Forgets the session; its row of the cache is dropped when the cohort is next compacted."""
        cohort = self._cohorts.pop(session, None)
        if cohort is not None:
            cohort.live.discard(session)

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float = 1.0) -> list[np.ndarray]:
        """Log-probabilities float32 [n] of each response after its prompt, by one padded forward pass per 16 pairs."""
        import torch

        scores: list[np.ndarray] = []
        with torch.inference_mode():
            for start in range(0, len(pairs), 16):
                batch = pairs[start : start + 16]
                width = max(len(prompt) + len(response) for prompt, response in batch)
                ids = torch.full((len(batch), width), self.template.pad_id)
                mask = torch.zeros_like(ids)
                for row, (prompt, response) in enumerate(batch):
                    whole = [*prompt, *response]
                    ids[row, : len(whole)], mask[row, : len(whole)] = torch.tensor(whole), 1
                device = self.model.device
                hidden = self.model.get_decoder()(
                    input_ids=ids.to(device), attention_mask=mask.to(device)
                ).last_hidden_state
                for row, (prompt, response) in enumerate(batch):
                    at = slice(len(prompt) - 1, len(prompt) + len(response) - 1)
                    logits = self._head(hidden[row, at]).float() / temperature
                    chosen = torch.tensor(list(response), device=device).unsqueeze(1)
                    scores.append(torch.log_softmax(logits, -1).gather(1, chosen).squeeze(1).cpu().numpy())
        return scores

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        import torch

        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode(), shared_heads(self.model):
            yield
        self.model.train(was_training)

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.get_output_embeddings()(hidden)

    def _generate(self, cohort: Cohort, requests: Sequence[Request]) -> dict[str, Response]:
        cohort.compact()
        rows = [cohort.row_of[request.session] for request in requests]
        writers = [_Writer(request, self) for request in requests]
        given = {
            k: cohort.new_ids(request) + writer.unfed()
            for k, (request, writer) in enumerate(zip(requests, writers, strict=True))
        }
        active = list(range(len(writers)))
        while active:
            fed = {rows[k]: given[k] for k in active}
            logits = self._head(cohort.last(self.model, fed, self.template.pad_id)[[rows[k] for k in active]])
            ids, logprobs = draw(
                logits,
                [writers[k].allowed() for k in active],
                np.array([writers[k].noise[len(writers[k].ids)] for k in active]),
                np.array([writers[k].request.temperature for k in active], dtype=np.float64),
            )
            for k, token, logprob in zip(active, ids.tolist(), logprobs, strict=True):
                writers[k].take(token, logprob)
            active = [k for k in active if not writers[k].done]
            given = {k: writers[k].unfed() for k in active}
        return {writer.request.session: writer.response() for writer in writers}


class _Writer:
    """One response being written: its tokens so far, and where it stands in the form of a restricted response."""

    def __init__(self, request: Request, policy: TransformersPolicy) -> None:
        self.request = request
        self.policy = policy
        self.noise = uniforms(request.noise_key, request.max_new_tokens)
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.choices: list[tuple[int, ...] | None] = []
        self.node: TrieNode | None = policy.tries.opening() if request.actions else None
        self.fed = 0  # how many of the ids the model has seen
        self.finished = False
        self._follow()

    @property
    def done(self) -> bool:
        """Whether nothing more is to be sampled."""
        return self.finished or len(self.ids) >= self.request.max_new_tokens

    def allowed(self) -> tuple[int, ...] | None:
        """Ids that may come next, or None for all."""
        return self.node.allowed if self.node is not None else None

    def take(self, token: int, logprob: float) -> None:
        """Appends the sampled token, and what follows from it without a choice."""
        self._append(token, logprob)
        self._follow()

    def unfed(self) -> list[int]:
        """The tokens that the model has not seen yet; they count as seen from now on."""
        ids, self.fed = self.ids[self.fed :], len(self.ids)
        return ids

    def response(self) -> Response:
        """What was sampled."""
        restricted = any(choice is not None for choice in self.choices)
        return Response(
            session=self.request.session,
            ids=tuple(self.ids),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            finished=self.finished,
            allowed=tuple(self.choices) if restricted else None,
        )

    def _follow(self) -> None:
        # A token without an alternative has probability one: no need to ask the model for it.
        while not self.done and self.node is not None and len(self.node.allowed) == 1:
            self._append(self.node.allowed[0], 0.0)

    def _append(self, token: int, logprob: float) -> None:
        self.choices.append(self.allowed())
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.finished = token in self.policy.template.end_ids
        if self.node is not None:
            child = self.node.children[token]
            self.node = child if child.allowed else None
        if self.node is None and self.request.actions and not self.finished:
            self.node = self._action_trie(self.request.actions)

    def _action_trie(self, actions: tuple[str, ...]) -> TrieNode | None:
        """The trie to enter here, while the thought is being written: once it is closed, or has to be."""
        tries = self.policy.tries
        if self._closes_thought():
            return tries.actions(actions, ACTION_OPEN)
        forced = tries.actions(actions, THINK_CLOSE + ACTION_OPEN)
        return forced if len(self.ids) + forced.depth >= self.request.max_new_tokens else None

    def _closes_thought(self) -> bool:
        if self.policy.close_id is not None:
            return self.ids[-1] == self.policy.close_id
        return self.policy.template.decode(self.ids[-_TAIL_TOKENS:]).endswith(THINK_CLOSE)
