"""From rows to micro-batches: which rows go through the model together, and the arrays that they become. Numpy only.

A micro-batch is padded on the right to its longest row, so rows of like length go together, and its size is counted in
padded tokens. The order depends on the rows alone, which keeps a CPU run reproducible bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from agentcredit.training.rows import Row


@dataclass(frozen=True)
class MicroBatch:
    """B lines padded to N tokens, and the K tokens of them whose log-probability the loss needs.

    A line is one row, or a row followed by the F tokens that others add to parts of it (:func:`forks_of`), so that every
    context is computed once; what another adds is without its last token, which predicts nothing. All roots of the
    micro-batch stand in its first N − F columns, where the mask is causal; ``visible_BFN`` says what the others see, and
    ``place_BN`` where each token stands in its own row.

    The K tokens are the sampled ones and those with a cross-entropy weight. The first ``n_free`` of them are predicted
    over the whole vocabulary, in the order of the rows; the others over their allowed ids, fewest ids first.

    ``ids_BN``       int64 [B, N], padded on the right with id 0.
    ``index_R``      the rows, as places in the list given to :func:`collate`.
    ``row_K``, ``position_K``, ``target_K``  which of these rows a token belongs to, where it stands there (≥ 1), its id.
    ``line_K``, ``source_K``  where in ``ids_BN`` the token before it stands, whose hidden state predicts it.
    ``place_BN``, ``visible_BFN``  int64 positions and bool [line, from, to], or None where F is 0.
    ``allowed_K``    sorted ids of tokens ``n_free``…K, one int64 array each; ``choice_K`` the target's place in it.
    ``sampled_K``    bool. ``rollout_logprob_K``, ``advantage_K``, ``ce_weight_K``, ``loss_weight_K``: float32;
                     ``loss_weight_K`` is the aggregation's weight of a sampled token (loss.py).
    """

    ids_BN: np.ndarray
    index_R: np.ndarray
    row_K: np.ndarray
    position_K: np.ndarray
    target_K: np.ndarray
    line_K: np.ndarray
    source_K: np.ndarray
    place_BN: np.ndarray | None
    visible_BFN: np.ndarray | None
    n_free: int
    allowed_K: tuple[np.ndarray, ...]
    choice_K: np.ndarray
    sampled_K: np.ndarray
    rollout_logprob_K: np.ndarray
    advantage_K: np.ndarray
    ce_weight_K: np.ndarray
    loss_weight_K: np.ndarray

    def gather(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """The K tokens' values, float32 [K], from arrays [N] of the rows that :func:`collate` was given."""
        return _gather([values[index] for index in self.index_R], self.row_K, self.position_K)


def materialise(rows: Sequence[Row]) -> list[Row]:
    """The same rows with every shared prefix written out, as context that carries no loss.

    Raises:
        ValueError: a prefix points at itself, at a later row, or past the end of its row.
    """
    whole: list[Row] = []
    for index, row in enumerate(rows):
        if row.prefix is None:
            whole.append(row)
            continue
        parent, length = row.prefix
        if not 0 <= parent < index or not 0 <= length <= len(whole[parent]):
            raise ValueError(f"row {index} continues the first {length} tokens of row {parent}, which do not exist")
        silent = np.zeros(length, dtype=np.float32)
        whole.append(
            replace(
                row,
                ids=np.concatenate([whole[parent].ids[:length], row.ids]),
                sampled=np.concatenate([silent.astype(bool), row.sampled]),
                rollout_logprobs=np.concatenate([silent, row.rollout_logprobs]),
                advantage=np.concatenate([silent, row.advantage]),
                ce_weight=np.concatenate([silent, row.ce_weight]),
                allowed=None if row.allowed is None else (None,) * length + row.allowed,
                prefix=None,
            )
        )
    return whole


def families(rows: Sequence[Row]) -> list[list[int]]:
    """Indices of the rows, those that continue one another (by ``prefix``) together, in order of their first row."""
    roots: list[int] = []
    members: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        roots.append(index if row.prefix is None else roots[row.prefix[0]])
        members.setdefault(roots[-1], []).append(index)
    return list(members.values())


def forks_of(rows: Sequence[Row]) -> list[tuple[int, int] | None]:
    """Per row (root, length) where it continues the first ``length`` tokens of a row that continues none, else None."""
    forks: list[tuple[int, int] | None] = []
    for row in rows:
        fork = row.prefix
        if fork is not None and (parent := forks[fork[0]]) is not None:
            # A fork of a fork: before the parent's own tokens it is one of the root; after them it is written out.
            fork = (parent[0], fork[1]) if fork[1] <= parent[1] else None
        forks.append(fork if fork is not None and fork[1] > 0 else None)
    return forks


class Line(NamedTuple):
    """Rows that stand in one line, the root first: tokens of the root, and of what the others add to parts of it.

    Of each other row the last token is not among them: it is predicted, and predicts nothing.
    """

    rows: list[int]
    root: int
    forks: int


def lines_of(
    units: Sequence[Sequence[int]], lengths: Sequence[int], forks: Sequence[tuple[int, int] | None] | None
) -> list[list[Line]]:
    """Per unit its lines.

    A root that is not itself in the unit joins as context. Without ``forks`` every row is a line.
    """
    result: list[list[Line]] = []
    for unit in units:
        lines: dict[int, Line] = {}
        for index in unit:
            fork = forks[index] if forks is not None else None
            if fork is None:
                lines[index] = Line([index], lengths[index], 0)
                continue
            line = lines.get(fork[0], Line([fork[0]], lengths[fork[0]], 0))
            lines[fork[0]] = Line([*line.rows, index], line.root, line.forks + lengths[index] - fork[1] - 1)
        result.append(list(lines.values()))
    return result


def plan(lines: Sequence[Line], units: Sequence[Sequence[int]], budget: int) -> list[list[int]]:
    """Splits lines into micro-batches of at most ``budget`` padded tokens, longest first.

    Lines that share nothing go by themselves: a mask makes attention slower for all lines of its micro-batch.

    Args:
        lines: what is to be batched.
        units: indices of lines to keep together where the budget allows (:func:`families`).
        budget: padded tokens, each line being padded to the longest root and the longest forks; a single longer line
            goes alone.
    """

    def padded(indices: Sequence[int]) -> int:
        return len(indices) * (max(lines[i].root for i in indices) + max(lines[i].forks for i in indices))

    def order(index: int) -> tuple[int, int]:
        return -lines[index].root - lines[index].forks, index

    batches: list[list[int]] = []
    by_length = sorted((sorted(unit, key=order) for unit in units), key=lambda unit: order(unit[0]))
    for sharing in (False, True):
        current: list[int] = []
        for unit in by_length:
            if any(lines[index].forks for index in unit) != sharing:
                continue
            # A unit that fits nowhere as a whole is cut where the budget runs out.
            for part in [unit] if padded(unit) <= budget else [[index] for index in unit]:
                if current and padded([*current, *part]) > budget:
                    batches.append(current)
                    current = []
                current = [*current, *part]
        batches += [current] if current else []
    return batches


def collate(
    rows: Sequence[Row],
    loss_weights: Sequence[np.ndarray],
    index: Sequence[int],
    forks: Sequence[tuple[int, int] | None] | None = None,
    context: Collection[int] = (),
) -> MicroBatch:
    """The micro-batch of ``rows[i] for i in index``.

    Args:
        rows: rows without prefixes (:func:`materialise`).
        loss_weights: per row float [N], the aggregation's weight of each token's loss.
        index: the rows to take.
        forks: :func:`forks_of` the rows as they were; a row whose root is taken too joins its line. None: no row does.
        context: rows that are there for others to continue: none of their own tokens is predicted.

    Raises:
        ValueError: a first token is to be predicted, or a token is not among its allowed ids.
    """
    chosen = [rows[i] for i in index]
    lines = _lines(rows, index, forks)
    free: list[tuple[int, int]] = []
    bound: list[tuple[int, int, np.ndarray]] = []
    for r, row in enumerate(chosen):
        if index[r] in context:
            continue
        for position in np.flatnonzero(row.sampled | (row.ce_weight != 0)).tolist():
            allowed = row.allowed[position] if row.allowed is not None else None
            if position == 0:
                raise ValueError(f"token 0 of row {index[r]} has no context to be predicted from")
            if allowed is None:
                free.append((r, position))
            else:
                bound.append((r, position, np.asarray(allowed, dtype=np.int64)))
    bound.sort(key=lambda token: len(token[2]))  # stable: rows' order within one count
    places = free + [(r, position) for r, position, _ in bound]
    row_K, position_K = np.array(places, dtype=np.int64).reshape(-1, 2).T

    return MicroBatch(
        ids_BN=lines.ids_BN,
        index_R=np.array(index, dtype=np.int64),
        row_K=row_K,
        position_K=position_K,
        target_K=np.array([chosen[r].ids[p] for r, p in places], dtype=np.int64),
        line_K=lines.line_R[row_K],
        source_K=lines.column(row_K, position_K - 1),
        place_BN=lines.place_BN,
        visible_BFN=lines.visible_BFN,
        n_free=len(free),
        allowed_K=tuple(allowed for *_, allowed in bound),
        choice_K=np.array([_place(chosen[r].ids[p], allowed) for r, p, allowed in bound], dtype=np.int64),
        sampled_K=_gather([row.sampled for row in chosen], row_K, position_K).astype(bool),
        rollout_logprob_K=_gather([row.rollout_logprobs for row in chosen], row_K, position_K),
        advantage_K=_gather([row.advantage for row in chosen], row_K, position_K),
        ce_weight_K=_gather([row.ce_weight for row in chosen], row_K, position_K),
        loss_weight_K=_gather([loss_weights[i] for i in index], row_K, position_K),
    )


@dataclass(frozen=True)
class _Lines:
    """Where R rows stand in B lines. Row r's tokens before ``fork_R`` are its root's, the others begin at ``begin_R``."""

    ids_BN: np.ndarray
    line_R: np.ndarray
    fork_R: np.ndarray
    begin_R: np.ndarray
    place_BN: np.ndarray | None
    visible_BFN: np.ndarray | None

    def column(self, row_K: np.ndarray, position_K: np.ndarray) -> np.ndarray:
        """Columns of tokens given by row and position."""
        own = position_K >= self.fork_R[row_K]
        return np.where(own, self.begin_R[row_K] + position_K - self.fork_R[row_K], position_K)


def _lines(rows: Sequence[Row], index: Sequence[int], forks: Sequence[tuple[int, int] | None] | None) -> _Lines:
    taken = {i: r for r, i in enumerate(index)}
    line_R, fork_R, begin_R = (np.zeros(len(index), dtype=np.int64) for _ in range(3))
    columns_R = np.array([len(rows[i]) for i in index])
    roots: list[int] = []
    for r, i in enumerate(index):
        fork = forks[i] if forks is not None else None
        if fork is None or fork[0] not in taken:
            line_R[r] = len(roots)
            roots.append(len(rows[i]))
    root_columns = max(roots)
    ends = [root_columns] * len(roots)
    for r, i in enumerate(index):
        fork = forks[i] if forks is not None else None
        if fork is not None and fork[0] in taken:
            line_R[r], fork_R[r] = line_R[taken[fork[0]]], fork[1]
            begin_R[r], columns_R[r] = ends[line_R[r]], len(rows[i]) - fork[1] - 1
            ends[line_R[r]] += columns_R[r]
    width = max(ends)
    ids_BN = np.zeros((len(ends), width), dtype=np.int64)
    for r, i in enumerate(index):
        first, n = fork_R[r], columns_R[r]
        ids_BN[line_R[r], begin_R[r] : begin_R[r] + n] = rows[i].ids[first : first + n]
    if width == root_columns:
        return _Lines(ids_BN, line_R, fork_R, begin_R, None, None)
    place_BN = np.tile(np.arange(width), (len(ends), 1))
    # Padding sees itself: a token that sees nothing would have no number.
    visible_BFN = np.tile(np.eye(width, dtype=bool)[root_columns:], (len(ends), 1, 1))
    for b, first, begin, n in zip(line_R, fork_R, begin_R, columns_R, strict=True):
        if first:
            place_BN[b, begin : begin + n] = np.arange(first, first + n)
            seen_FN = visible_BFN[b, begin - root_columns : begin - root_columns + n]
            seen_FN[:, :first] = True
            seen_FN[:, begin : begin + n] = np.tri(n, dtype=bool)
    return _Lines(ids_BN, line_R, fork_R, begin_R, place_BN, visible_BFN)


def _gather(values: Sequence[np.ndarray], row_K: np.ndarray, position_K: np.ndarray) -> np.ndarray:
    starts = np.cumsum([0, *(len(row) for row in values[:-1])])
    return np.concatenate(values).astype(np.float32)[starts[row_K] + position_K]


def _place(target: int, allowed: np.ndarray) -> int:
    place = int(np.searchsorted(allowed, target))
    if place == len(allowed) or allowed[place] != target:
        raise ValueError(f"token {target} is not among the {len(allowed)} ids that it was chosen from")
    return place
