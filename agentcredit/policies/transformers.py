"""The embedded policy: batched sampling with a transformers model, its key-value cache kept across turns.

All live episodes advance in lockstep and in a fixed order. Sessions that begin together form a *cohort*, which shares one
batched cache; each turn feeds only the tokens that are new since the last. Rows differ in length, so the cache has holes:
a mask says which of its columns are real, and positions are counted per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agentcredit.policies.actions import ACTION_OPEN, THINK_CLOSE, ActionTries, TrieNode
from agentcredit.policies.base import Request, Response
from agentcredit.policies.decoding import growing_cache, shared_heads
from agentcredit.policies.dialogue import Template
from agentcredit.policies.noise import uniforms
from agentcredit.policies.sampling import draw

if TYPE_CHECKING:
    import torch

_COMPACT_ROWS_BELOW = 0.75  # rebuild the cache when fewer of its rows are still live
_COMPACT_COLUMNS_ABOVE = 1.25  # ... or when it is this much wider than its longest row
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
        self._cohorts: dict[str, _Cohort] = {}
        close_ids = template.encode(THINK_CLOSE)
        # One id for the tag (the tiny model's tokenizer) makes the test for a closed thought a comparison.
        self.close_id = close_ids[0] if len(close_ids) == 1 else None

    def submit(self, requests: Sequence[Request]) -> None:
        """Queues requests."""
        self._queue.extend(requests)

    def collect(self) -> list[Response]:
        """Samples all queued requests; responses in the order of submission."""
        import torch

        requests, self._queue = self._queue, []
        by_cohort: dict[int, tuple[_Cohort, list[Request]]] = {}
        fresh: list[Request] = []
        for request in requests:
            cohort = self._cohorts.get(request.session)
            if cohort is not None and cohort.continues(request):
                by_cohort.setdefault(id(cohort), (cohort, []))[1].append(request)
            else:
                self.release(request.session)
                fresh.append(request)
        if fresh:
            cohort = _Cohort([request.session for request in fresh])
            self._cohorts |= dict.fromkeys(cohort.row_of, cohort)
            by_cohort[id(cohort)] = (cohort, fresh)
        answers: dict[str, Response] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode(), shared_heads(self.model):
            for cohort, asked in by_cohort.values():
                answers |= self._generate(cohort, asked)
        self.model.train(was_training)
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

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.get_output_embeddings()(hidden)

    def _generate(self, cohort: _Cohort, requests: Sequence[Request]) -> dict[str, Response]:
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
            logits = self._head(cohort.feed(self.model, fed, self.template.pad_id)[[rows[k] for k in active]])
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


class _Cohort:
    """Sessions that began together, and their shared cache of B rows and L columns."""

    def __init__(self, sessions: Sequence[str]) -> None:
        self.row_of = {session: row for row, session in enumerate(sessions)}
        self.live = set(sessions)
        self.stored: list[list[int]] = [[] for _ in sessions]  # ids whose keys and values are in the cache, per row
        self.cache: Any = None
        self.mask: torch.Tensor | None = None  # bool [B, L]: the column is real for the row

    def continues(self, request: Request) -> bool:
        """Whether the request's context starts with what the cache holds for its session, and goes on."""
        stored = self.stored[self.row_of[request.session]]
        context = request.context_ids
        return len(context) > len(stored) and list(context[: len(stored)]) == stored

    def new_ids(self, request: Request) -> list[int]:
        """The part of the context that the cache does not hold yet."""
        return list(request.context_ids[len(self.stored[self.row_of[request.session]]) :])

    def feed(self, model: Any, ids_of_row: dict[int, list[int]], pad_id: int) -> torch.Tensor:
        """Runs new tokens through the model and returns the hidden state of each row's last one, [B, D].

        Rows that are given nothing pass a masked padding token; their hidden state means nothing.
        """
        import torch

        device = model.device
        n_rows, width = len(self.stored), max(len(ids) for ids in ids_of_row.values())
        tokens = torch.full((n_rows, width), pad_id)
        real = torch.zeros((n_rows, width), dtype=torch.bool)
        positions = torch.zeros((n_rows, width), dtype=torch.int64)
        last = torch.zeros(n_rows, dtype=torch.int64)
        for row, ids in ids_of_row.items():
            start = len(self.stored[row])
            tokens[row, : len(ids)] = torch.tensor(ids)
            real[row, : len(ids)] = True
            positions[row, : len(ids)] = torch.arange(start, start + len(ids))
            last[row] = len(ids) - 1
            self.stored[row].extend(ids)
        if self.cache is None:
            self.cache = growing_cache(model.config)
            self.mask = real.to(device)
        else:
            assert self.mask is not None
            self.mask = torch.cat([self.mask, real.to(device)], dim=1)
        hidden = model.get_decoder()(
            input_ids=tokens.to(device),
            attention_mask=_attention_mask(model, self.mask, width),
            position_ids=positions.to(device),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        return hidden[torch.arange(n_rows, device=device), last.to(device)]

    def compact(self) -> None:
        """Drops the rows of released sessions and squeezes holes out, when there is enough to gain."""
        import torch

        if self.cache is None or self.mask is None:
            return
        longest = max((len(self.stored[self.row_of[session]]) for session in self.live), default=0)
        crowded = len(self.live) >= _COMPACT_ROWS_BELOW * len(self.stored)
        if crowded and self.mask.shape[1] <= _COMPACT_COLUMNS_ABOVE * max(1, longest):
            return
        order = sorted(self.live, key=self.row_of.__getitem__)
        rows = torch.tensor([self.row_of[session] for session in order], device=self.mask.device)
        mask = self.mask[rows]
        # A stable sort puts each row's real columns first, in their order; the rest is cut off or stays masked.
        columns = torch.argsort((~mask).to(torch.int8), dim=1, stable=True)[:, :longest]
        for layer in self.cache.layers:
            layer.keys = _take(layer.keys, rows, columns)
            layer.values = _take(layer.values, rows, columns)
        self.mask = mask.gather(1, columns)
        self.stored = [self.stored[row] for row in rows.tolist()]
        self.row_of = {session: row for row, session in enumerate(order)}


def _attention_mask(model: Any, real: torch.Tensor, width: int) -> torch.Tensor:
    """Who sees whom: real columns up to one's own. [B, 1, W, L] for SDPA, which takes it as it is; else [B, L].

    Left to itself, transformers builds the same mask anew at every token, which costs a small model half its time.
    """
    import torch

    if not model.config._attn_implementation.startswith("sdpa"):
        return real.long()
    earlier = real.shape[1] - width
    causal = torch.ones((width, real.shape[1]), dtype=torch.bool, device=real.device).tril(earlier)
    return real[:, None, None, :] & causal


def _take(states: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Rows and per-row columns of keys or values [B, H, L, D]."""
    chosen = states[rows]
    index = columns[:, None, :, None].expand(-1, chosen.shape[1], -1, chosen.shape[3])
    return chosen.gather(2, index)
