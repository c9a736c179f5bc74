"""Log-probabilities of rows that continue one another, each shared beginning computed once: for scoring, without gradients.

A row's keys and values are kept until those that continue it have been scored from a copy of them. The learner's own way of
sharing, one line with a mask (``packing.py``), keeps a graph for the backward pass, but its attention grows with the square
of all that stands in the line: for a teacher's many long notes it is slower than writing every context out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentcredit.policies.cohort import Cohort
from agentcredit.training.logprobs import TokenScorer
from agentcredit.training.packing import collate, families, materialise
from agentcredit.training.rows import Row

if TYPE_CHECKING:
    import torch


def branch_logprobs(model: Any, scorer: TokenScorer, rows: Sequence[Row], budget: int) -> list[np.ndarray]:
    """Per row float32 [N]: log-probabilities of its sampled tokens under the model as it is, 0 elsewhere.

    Args:
        model: a causal language model of transformers that keeps a cache.
        scorer: the model's head, temperature and choice among allowed ids.
        rows: rows, those with a prefix after those that they continue.
        budget: tokens of the rows that begin a family (:func:`agentcredit.training.packing.families`) at once.

    Raises:
        ValueError: a prefix that does not exist, or a first token that is to be predicted.
    """
    import torch

    whole = materialise(rows)
    scores = [np.zeros(len(row), dtype=np.float32) for row in whole]
    wanted = [unit for unit in families(rows) if any(rows[index].sampled.any() for index in unit)]
    with torch.no_grad():
        for share in _shares(wanted, [len(row) for row in whole], budget):
            states = _States(model, rows, budget)
            states.feed(share)
            asked = [index for index in share if rows[index].sampled.any()]
            batch = collate(whole, scores, asked)
            place_K = zip(batch.row_K.tolist(), batch.position_K.tolist(), strict=True)
            hidden_KD = torch.stack([states.before(asked[row], position) for row, position in place_K])
            values_K = scorer.of_hidden(batch, hidden_KD)[0].cpu().numpy()
            for k in np.flatnonzero(batch.sampled_K):
                scores[asked[batch.row_K[k]]][batch.position_K[k]] = values_K[k]
    return [score[len(score) - len(row) :] for score, row in zip(scores, rows, strict=True)]


@dataclass
class _Place:
    """Where a row stands: its cohort and line there, how long its whole beginning is, and its own tokens' states [n, D]."""

    cohort: Cohort
    line: int
    fork: int
    hidden: torch.Tensor


class _States:
    """Hidden states of rows, computed level by level: rows that begin, those that continue them, those that continue these."""

    def __init__(self, model: Any, rows: Sequence[Row], budget: int) -> None:
        self.model, self.rows, self.budget = model, rows, budget
        self.places: dict[int, _Place] = {}

    def feed(self, indices: Sequence[int]) -> None:
        """Computes the rows named, which hold with every row the one that it continues."""
        left = list(indices)
        while left:
            ready = [i for i in left if (prefix := self.rows[i].prefix) is None or prefix[0] in self.places]
            for together in self._level(ready):
                self._compute(together)
            left = [i for i in left if i not in self.places]

    def before(self, index: int, position: int) -> torch.Tensor:
        """The state [D] that predicts a row's token, counted from the beginning of what it continues."""
        place = self.places[index]
        while position - 1 < place.fork:
            prefix = self.rows[index].prefix
            assert prefix is not None
            index = prefix[0]
            place = self.places[index]
        return place.hidden[position - 1 - place.fork]

    def _level(self, ready: Sequence[int]) -> Iterator[list[int]]:
        """Rows that continue one cohort (or none), of like length, within the budget of cached and new tokens."""
        origin = {i: self._origin(i) for i in ready}
        cohorts: dict[int, list[int]] = {}
        for i in ready:
            cohorts.setdefault(id(origin[i][0]), []).append(i)
        for members in cohorts.values():
            part: list[int] = []
            for i in sorted(members, key=lambda i: (origin[i][2] + len(self.rows[i]), i)):
                width = origin[i][2] + len(self.rows[i])
                if part and width * (len(part) + 1) > self.budget:
                    yield part
                    part = []
                part.append(i)
            yield part

    def _origin(self, index: int) -> tuple[Cohort | None, int, int]:
        prefix = self.rows[index].prefix
        if prefix is None or prefix[1] == 0:
            return None, 0, 0
        place = self.places[prefix[0]]
        return place.cohort, place.line, prefix[1]

    def _compute(self, indices: Sequence[int]) -> None:
        origins = [self._origin(i) for i in indices]
        parent, names = origins[0][0], [str(i) for i in indices]
        cohort = parent.branch([(line, n) for _, line, n in origins], names) if parent is not None else Cohort(names)
        given = {line: self.rows[i].ids.tolist() for line, i in enumerate(indices) if len(self.rows[i])}
        hidden = cohort.feed(self.model, given, 0)
        for line, (i, (_, _, fork)) in enumerate(zip(indices, origins, strict=True)):
            self.places[i] = _Place(cohort, line, fork, hidden[line, : len(self.rows[i])])


def _shares(units: Sequence[Sequence[int]], lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Families together up to the budget of their longest rows, in their order."""
    share: list[int] = []
    total = 0
    for unit in units:
        size = max(lengths[index] for index in unit)
        if share and total + size > budget:
            yield share
            share, total = [], 0
        share += unit
        total += size
    if share:
        yield share
