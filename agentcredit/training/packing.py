"""From rows to micro-batches: which rows go through the model together, and the arrays that they become. Numpy only.

A micro-batch is padded on the right to its longest row, so rows of like length go together, and its size is counted in
padded tokens. The order depends on the rows alone, which keeps a CPU run reproducible bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentcredit.training.rows import Row


@dataclass(frozen=True)
class MicroBatch:
    """B rows padded to N tokens, and the K tokens of them whose log-probability the loss needs.

    The K tokens are the sampled ones and those with a cross-entropy weight. The first ``n_free`` of them are predicted
    over the whole vocabulary, in the order of the rows; the others over their allowed ids, fewest ids first.

    ``ids_BN``       int64 [B, N], padded on the right with id 0.
    ``index_B``      each row's place in the list given to :func:`collate`.
    ``row_K``, ``position_K``, ``target_K``  where each token stands in ``ids_BN`` (position ≥ 1), and its id.
    ``allowed_K``    sorted ids of tokens ``n_free``…K, one int64 array each; ``choice_K`` the target's place in it.
    ``sampled_K``    bool. ``rollout_logprob_K``, ``advantage_K``, ``ce_weight_K``, ``loss_weight_K``: float32;
                     ``loss_weight_K`` is the aggregation's weight of a sampled token (loss.py).
    """

    ids_BN: np.ndarray
    index_B: np.ndarray
    row_K: np.ndarray
    position_K: np.ndarray
    target_K: np.ndarray
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
        return _gather([values[index] for index in self.index_B], self.row_K, self.position_K)


def materialise(rows: Sequence[Row]) -> list[Row]:
    """The same rows with every shared prefix written out, as context that carries no loss.

    Correct and simple; computing a shared prefix once is an engine's optimisation and gives the same numbers.

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
            Row(
                ids=np.concatenate([whole[parent].ids[:length], row.ids]),
                sampled=np.concatenate([silent.astype(bool), row.sampled]),
                rollout_logprobs=np.concatenate([silent, row.rollout_logprobs]),
                advantage=np.concatenate([silent, row.advantage]),
                ce_weight=np.concatenate([silent, row.ce_weight]),
                allowed=None if row.allowed is None else (None,) * length + row.allowed,
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


def plan(lengths: Sequence[int], units: Sequence[Sequence[int]], budget: int) -> list[list[int]]:
    """Splits rows into micro-batches of at most ``budget`` padded tokens, longest first.

    Args:
        lengths: tokens of every row.
        units: indices of rows to keep together where the budget allows (:func:`families`).
        budget: padded tokens; a single longer row goes alone.
    """
    batches: list[list[int]] = []
    current: list[int] = []
    by_length = [sorted(unit, key=lambda index: (-lengths[index], index)) for unit in units]
    for unit in sorted(by_length, key=lambda unit: (-lengths[unit[0]], unit[0])):
        # A unit that fits nowhere as a whole is cut where the budget runs out.
        fits_alone = lengths[unit[0]] * len(unit) <= budget
        for part in [unit] if fits_alone else [[index] for index in unit]:
            widest = max(lengths[index] for index in [*current, *part])
            if current and widest * (len(current) + len(part)) > budget:
                batches.append(current)
                current = []
            current = [*current, *part]
    return [*batches, current] if current else batches


def collate(rows: Sequence[Row], loss_weights: Sequence[np.ndarray], index: Sequence[int]) -> MicroBatch:
    """The micro-batch of ``rows[i] for i in index``.

    Args:
        rows: rows without prefixes (:func:`materialise`).
        loss_weights: per row float [N], the aggregation's weight of each token's loss.
        index: the rows to take.

    Raises:
        ValueError: a first token is to be predicted, or a token is not among its allowed ids.
    """
    chosen = [rows[i] for i in index]
    ids_BN = np.zeros((len(chosen), max(len(row) for row in chosen)), dtype=np.int64)
    free: list[tuple[int, int]] = []
    bound: list[tuple[int, int, np.ndarray]] = []
    for b, row in enumerate(chosen):
        ids_BN[b, : len(row)] = row.ids
        for position in np.flatnonzero(row.sampled | (row.ce_weight != 0)).tolist():
            allowed = row.allowed[position] if row.allowed is not None else None
            if position == 0:
                raise ValueError(f"token 0 of row {index[b]} has no context to be predicted from")
            if allowed is None:
                free.append((b, position))
            else:
                bound.append((b, position, np.asarray(allowed, dtype=np.int64)))
    bound.sort(key=lambda token: len(token[2]))  # stable: rows' order within one count
    places = free + [(b, position) for b, position, _ in bound]
    row_K, position_K = np.array(places, dtype=np.int64).reshape(-1, 2).T

    return MicroBatch(
        ids_BN=ids_BN,
        index_B=np.array(index, dtype=np.int64),
        row_K=row_K,
        position_K=position_K,
        target_K=ids_BN[row_K, position_K],
        n_free=len(free),
        allowed_K=tuple(allowed for *_, allowed in bound),
        choice_K=np.array([_place(ids_BN[b, p], allowed) for b, p, allowed in bound], dtype=np.int64),
        sampled_K=_gather([row.sampled for row in chosen], row_K, position_K).astype(bool),
        rollout_logprob_K=_gather([row.rollout_logprobs for row in chosen], row_K, position_K),
        advantage_K=_gather([row.advantage for row in chosen], row_K, position_K),
        ce_weight_K=_gather([row.ce_weight for row in chosen], row_K, position_K),
        loss_weight_K=_gather([loss_weights[i] for i in index], row_K, position_K),
    )


def _gather(values: Sequence[np.ndarray], row_K: np.ndarray, position_K: np.ndarray) -> np.ndarray:
    starts = np.cumsum([0, *(len(row) for row in values[:-1])])
    return np.concatenate(values).astype(np.float32)[starts[row_K] + position_K]


def _place(target: int, allowed: np.ndarray) -> int:
    place = int(np.searchsorted(allowed, target))
    if place == len(allowed) or allowed[place] != target:
        raise ValueError(f"token {target} is not among the {len(allowed)} ids that it was chosen from")
    return place
