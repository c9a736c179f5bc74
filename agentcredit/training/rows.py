"""Rows: what the learner sees of an episode. Tokens, and per token the numbers of the loss's streams (design §4).

A row may be *longer than one turn* (dialogue layout: one row per episode) or one turn (window layout). Nothing here
knows a method's name. Numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence of N tokens.

    ``ids``              int64 [N].
    ``sampled``          bool [N]: the policy sampled this token (it carries the policy gradient and the ratio).
    ``rollout_logprobs`` float32 [N]: behaviour log-probability where ``sampled``, else 0.
    ``advantage``        float32 [N]: policy-gradient advantage, 0 outside ``sampled``.
    ``ce_weight``        float32 [N]: cross-entropy weight of predicting this token, 0 where none.
    ``allowed``          per token the ids it was chosen from under restricted sampling, or None; the tuple itself is
                         None when no token was restricted. The learner renormalises over the same ids.
    ``prefix``           None, or (index of the row in the batch, length): the row continues that row's first ``length``
                         tokens, and ``ids`` holds only what follows (CoPE's forecasts).
    """

    ids: np.ndarray
    sampled: np.ndarray
    rollout_logprobs: np.ndarray
    advantage: np.ndarray
    ce_weight: np.ndarray
    allowed: tuple[tuple[int, ...] | None, ...] | None = None
    prefix: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.ids)
