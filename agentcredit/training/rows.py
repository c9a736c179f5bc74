"""Rows: what the learner sees of an episode. Tokens, and per token the numbers of the loss's streams.

A row may be *longer than one turn* (dialogue layout: one row per episode) or one turn (window layout). Nothing here
knows a method's name. Numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentcredit.episodes import Episode, Group, Turn

if TYPE_CHECKING:  # the methods' seam imports Row from here
    from agentcredit.methods.base import Assignment, Credit


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
    ``part``, ``weight`` the policy loss is a sum of parts, each divided by its own rows' counts and then multiplied by
                         ``weight``: sampled tokens beside the episodes' (RWML's predictions) do not thin these out.
    """

    ids: np.ndarray
    sampled: np.ndarray
    rollout_logprobs: np.ndarray
    advantage: np.ndarray
    ce_weight: np.ndarray
    allowed: tuple[tuple[int, ...] | None, ...] | None = None
    prefix: tuple[int, int] | None = None
    part: str = ""
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.ids)


def build_rows(groups: Sequence[Group], assignment: Assignment) -> list[Row]:
    """The rows of one training step: every episode's in the order of ``groups``, then the extra rows.

    The index in an extra row's ``prefix`` counts in this list.

    Raises:
        ValueError: the credits do not fit the episodes.
    """
    rows = [
        row
        for group, credits_E in zip(groups, assignment.credits, strict=True)
        for episode, credit in zip(group.episodes, credits_E, strict=True)
        for row in rows_of(episode, credit)
    ]
    return rows + list(assignment.extra_rows)


def rows_of(episode: Episode, credit: Credit) -> list[Row]:
    """The rows of one episode; none when it has no turn.

    Window layout: one row per turn. Dialogue layout: one row, each turn's new prompt tokens followed by its response.
    A turn with ``truncated_turns`` was asked in a context that was rebuilt rather than appended to, and its ``prompt_ids``
    are all of it, so a new row starts there: a row holds exactly the tokens that the policy was shown.

    Raises:
        ValueError: an array of the credit has another length than its turn, or is not finite.
    """
    contexts: list[list[Row]] = []
    for turn, piece in zip(episode.turns, _pieces(episode, credit), strict=True):
        if not contexts or _begins_row(episode, turn):
            contexts.append([])
        contexts[-1].append(piece)
    return [_joined(pieces) for pieces in contexts]


def prompt_ends(groups: Sequence[Group]) -> list[list[list[tuple[int, int]]]]:
    """Where each turn's prompt ends in the rows of :func:`build_rows`: per group, episode and turn (row, tokens so far).

    So a method's extra row can continue the context that an action was chosen in (``Row.prefix``).
    """
    row = -1
    places: list[list[list[tuple[int, int]]]] = []
    for group in groups:
        places.append([])
        for episode in group.episodes:
            ends: list[tuple[int, int]] = []
            length = 0
            for number, turn in enumerate(episode.turns):
                if number == 0 or _begins_row(episode, turn):
                    row, length = row + 1, 0
                ends.append((row, length + len(turn.prompt_ids)))
                length += len(turn.prompt_ids) + turn.n_tokens
            places[-1].append(ends)
    return places


def _begins_row(episode: Episode, turn: Turn) -> bool:
    """Whether the turn was asked in a context of its own rather than in that of the turn before."""
    return turn.truncated_turns > 0 or episode.layout == "window"


def _pieces(episode: Episode, credit: Credit) -> list[Row]:
    """One row per turn: its prompt tokens, then its response."""
    n_turns = len(episode.turns)
    streams = {
        "advantage": (credit.advantage_TN, [turn.n_tokens for turn in episode.turns]),
        "ce_response": (credit.ce_response_TN, [turn.n_tokens for turn in episode.turns]),
        "ce_prompt": (credit.ce_prompt_TN, [len(turn.prompt_ids) for turn in episode.turns]),
    }
    for name, (values_TN, lengths_T) in streams.items():
        if values_TN is None:
            continue
        where = f"{name} of episode {episode.sibling} of task '{episode.task.id}'"
        if [len(values) for values in values_TN] != lengths_T:
            raise ValueError(
                f"{where} has arrays of {[len(v) for v in values_TN]} tokens for turns of {lengths_T} tokens"
            )
        if not all(np.isfinite(values).all() for values in values_TN):
            raise ValueError(f"{where} is not finite")
    ce_response_TN = credit.ce_response_TN or (None,) * n_turns
    ce_prompt_TN = credit.ce_prompt_TN or (None,) * n_turns
    return [
        _piece(*values) for values in zip(episode.turns, credit.advantage_TN, ce_response_TN, ce_prompt_TN, strict=True)
    ]


def _piece(turn: Turn, advantage: np.ndarray, ce_response: np.ndarray | None, ce_prompt: np.ndarray | None) -> Row:
    n_prompt, n_response = len(turn.prompt_ids), turn.n_tokens
    after_prompt = np.zeros(n_prompt, dtype=np.float32)
    ce_weight = np.zeros(n_prompt + n_response, dtype=np.float32)
    if ce_prompt is not None:
        ce_weight[:n_prompt] = ce_prompt
    if ce_response is not None:
        ce_weight[n_prompt:] = ce_response
    return Row(
        ids=np.array([*turn.prompt_ids, *turn.response_ids], dtype=np.int64),
        sampled=np.arange(n_prompt + n_response) >= n_prompt,
        rollout_logprobs=np.concatenate([after_prompt, turn.response_logprobs]).astype(np.float32),
        advantage=np.concatenate([after_prompt, advantage]).astype(np.float32),
        ce_weight=ce_weight,
        allowed=None if turn.allowed is None else (None,) * n_prompt + tuple(turn.allowed),
    )


def _joined(pieces: Sequence[Row]) -> Row:
    """Consecutive pieces of a context as one row."""
    allowed = None
    if any(piece.allowed is not None for piece in pieces):
        allowed = tuple(ids for piece in pieces for ids in piece.allowed or (None,) * len(piece))
    return Row(
        ids=np.concatenate([piece.ids for piece in pieces]),
        sampled=np.concatenate([piece.sampled for piece in pieces]),
        rollout_logprobs=np.concatenate([piece.rollout_logprobs for piece in pieces]),
        advantage=np.concatenate([piece.advantage for piece in pieces]),
        ce_weight=np.concatenate([piece.ce_weight for piece in pieces]),
        allowed=allowed,
    )
