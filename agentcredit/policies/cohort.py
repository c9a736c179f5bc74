"""Contexts that go through the model together, and the key-value cache that they share.

A cohort grows (:meth:`Cohort.feed`), shrinks (:meth:`Cohort.compact`), and can be continued in several ways
(:meth:`Cohort.branch`): then what the continuations have in common was computed once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentcredit.policies.base import Request
from agentcredit.policies.decoding import growing_cache

if TYPE_CHECKING:
    import torch

_COMPACT_ROWS_BELOW = 0.75  # rebuild the cache when fewer of its rows are still live
_COMPACT_COLUMNS_ABOVE = 1.25  # ... or when it is this much wider than its longest row


def trunks_of(contexts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Per context (trunk, length): which context it is computed from, and how many first tokens the two have in common.

    Neighbours that begin alike for at least half of their length have one trunk, the last of them; a trunk is its own, and
    at least one token is left to be computed.
    """
    found: list[tuple[int, int]] = []
    trunk: int | None = None
    for index in range(len(contexts) - 1, -1, -1):
        context = contexts[index]
        common = _common(context, contexts[trunk]) if trunk is not None else 0
        if trunk is None or 2 * common < len(context):
            trunk, common = index, len(context)
        found.append((trunk, min(common, len(context) - 1)))
    return found[::-1]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


class Cohort:
    """Sessions that began together, and their shared cache of B rows and L columns.

    Rows differ in length, so the cache has holes: a mask says which of its columns are real, and positions are counted per
    row.
    """

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

    def last(self, model: Any, ids_of_row: dict[int, list[int]], pad_id: int) -> torch.Tensor:
        """Runs new tokens through the model and returns the hidden state of each row's last one, [B, D].

        That of a row that is given nothing means nothing.
        """
        import torch

        hidden = self.feed(model, ids_of_row, pad_id)
        ends = [len(ids_of_row.get(row, ())) - 1 for row in range(len(self.stored))]
        return hidden[
            torch.arange(len(ends), device=hidden.device), torch.tensor(ends, device=hidden.device).clamp(min=0)
        ]

    def feed(self, model: Any, ids_of_row: dict[int, list[int]], pad_id: int) -> torch.Tensor:
        """Runs new tokens through the model and returns their hidden states, [B, W, D], padded on the right.

        Rows that are given nothing pass masked padding tokens.
        """
        import torch

        device = model.device
        n_rows, width = len(self.stored), max(len(ids) for ids in ids_of_row.values())
        tokens = torch.full((n_rows, width), pad_id)
        real = torch.zeros((n_rows, width), dtype=torch.bool)
        positions = torch.zeros((n_rows, width), dtype=torch.int64)
        for row, ids in ids_of_row.items():
            start = len(self.stored[row])
            tokens[row, : len(ids)] = torch.tensor(ids)
            real[row, : len(ids)] = True
            positions[row, : len(ids)] = torch.arange(start, start + len(ids))
            self.stored[row].extend(ids)
        fresh = self.cache is None
        if self.cache is None or self.mask is None:
            self.cache, self.mask = growing_cache(model.config), real.to(device)
        else:
            self.mask = torch.cat([self.mask, real.to(device)], dim=1)
        return model.get_decoder()(
            input_ids=tokens.to(device),
            attention_mask=_attention_mask(model, self.mask, width, fresh),
            position_ids=positions.to(device),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state

    def branch(self, origins: Sequence[tuple[int, int]], sessions: Sequence[str]) -> Cohort:
        """A new cohort whose rows continue rows of this one: per session (row, how many of its tokens)."""
        import torch

        new = Cohort(sessions)
        new.stored = [self.stored[row][:length] for row, length in origins]
        longest = max((length for _, length in origins), default=0)
        if longest == 0:
            return new
        assert self.cache is not None
        assert self.mask is not None
        rows = torch.tensor([row for row, _ in origins], device=self.mask.device)
        lengths = torch.tensor([length for _, length in origins], device=self.mask.device)
        # A stable sort puts each row's real columns first, in their order.
        columns = torch.argsort((~self.mask[rows]).to(torch.int8), dim=1, stable=True)[:, :longest]
        new.cache = copy.copy(self.cache)
        new.cache.layers = [copy.copy(layer) for layer in self.cache.layers]
        for layer in new.cache.layers:
            layer.keys = _take(layer.keys, rows, columns)
            layer.values = _take(layer.values, rows, columns)
        new.mask = torch.arange(longest, device=self.mask.device) < lengths[:, None]
        return new

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


def _attention_mask(model: Any, real: torch.Tensor, width: int, fresh: bool) -> torch.Tensor | None:
    """Who sees whom: real columns up to one's own. [B, 1, W, L] for SDPA, which takes it as it is; else [B, L].

    Left to itself, transformers builds the same mask anew at every token, which costs a small model half its time. Where
    nothing is cached yet, padding stands to the right of all real tokens: causal attention alone hides it, at a third of the
    time.
    """
    import torch

    if not model.config._attn_implementation.startswith("sdpa"):
        return real.long()
    if fresh:
        return None
    earlier = real.shape[1] - width
    causal = torch.ones((width, real.shape[1]), dtype=torch.bool, device=real.device).tril(earlier)
    return real[:, None, None, :] & causal


def _take(states: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Rows and per-row columns of keys or values [B, H, L, D]."""
    chosen = states[rows]
    index = columns[:, None, :, None].expand(-1, chosen.shape[1], -1, chosen.shape[3])
    return chosen.gather(2, index)
