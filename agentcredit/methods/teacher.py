"""The same model as its own teacher: what it makes of a response once it is told more (docs/training.md).

A *note* is one more message of the user, put between the context of an action and the start of the answer; the response is
then scored again, token by token. Nothing is generated, and the weights are the rollout's. Contexts go through the model
once for an episode and all its notes (``train.share_prefixes``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentcredit.episodes import Episode, Group, Turn
from agentcredit.errors import UsageError
from agentcredit.methods.base import Conversation, TokenAdvantages, Tools, without_credit
from agentcredit.training.rows import Row, build_rows, prompt_ends

BOUND = 20.0
"""Log-ratios are clamped to this, as the losses' are."""

Notes = Sequence[Sequence[Sequence[str | None]]]
"""``notes[g][e][t]``: what the teacher is told at a turn; None leaves the turn alone."""


@dataclass(frozen=True)
class Contexts:
    """The episodes' rows as contexts that others continue: none of their own tokens is asked for."""

    rows: list[Row]
    ends: list[list[list[tuple[int, int]]]]

    def continued(self, template: Conversation, at: tuple[int, int, int], note: str | None, said: Turn) -> Row:
        """A response after the context of the turn ``at`` (group, episode, turn), with a note or as it was."""
        group, episode, turn = at
        row, end = self.ends[group][episode][turn]
        question = template.aside(note) if note is not None else []
        return _silent_before(question, said, (row, end - (len(template.answer_mark) if note is not None else 0)))


def teacher_prompt(template: Conversation, episode: Episode, t: int, note: str | None) -> list[int]:
    """All that the teacher has before it at a turn: the student's context, and the note before the start of the answer."""
    begin = t
    if episode.layout == "dialogue":
        while begin > 0 and not episode.turns[begin].truncated_turns:
            begin -= 1
    ids = [token for turn in episode.turns[begin:t] for token in (*turn.prompt_ids, *turn.response_ids)]
    ids += episode.turns[t].prompt_ids
    if note is None:
        return ids
    return [*ids[: len(ids) - len(template.answer_mark)], *template.aside(note)]


def answering(asked: int, row: Row, said: Turn, other: Turn) -> Row:
    """Another response in the place of ``said``, where the row numbered ``asked`` ends with that one."""
    assert row.prefix is not None
    return _silent_before([], other, (asked, row.prefix[1] + len(row) - said.n_tokens))


def _silent_before(question: Sequence[int], said: Turn, prefix: tuple[int, int]) -> Row:
    """A response after a question, continuing another row; only the response is asked for."""
    ids = np.array([*question, *said.response_ids], dtype=np.int64)
    nothing = np.zeros(len(ids), dtype=np.float32)
    return Row(
        ids=ids,
        sampled=np.arange(len(ids)) >= len(question),
        rollout_logprobs=nothing,
        advantage=nothing,
        ce_weight=nothing,
        allowed=None if said.allowed is None else (None,) * len(question) + tuple(said.allowed),
        prefix=prefix,
    )


def context_rows(groups: Sequence[Group]) -> Contexts:
    """The rows of the groups' episodes, to be continued."""
    silent = [
        replace(row, sampled=np.zeros(len(row), dtype=bool)) for row in build_rows(groups, without_credit(groups))
    ]
    return Contexts(silent, prompt_ends(groups))


def gaps(groups: Sequence[Group], notes: Notes, tools: Tools, method: str) -> TokenAdvantages:
    """δ = log π(token | context, note) − log π(token | context) of every sampled token; 0 where there is no note.

    Both are under the rollout's weights, temperature and allowed ids; clamped to ±20.

    Args:
        groups: the episodes.
        notes: what is told at each turn.
        tools: gives ``template`` and ``logprobs``.
        method: named in the error.

    Raises:
        UsageError: the run's policy cannot be asked (scripted policies).
    """
    if not any(note is not None for g in notes for e in g for note in e):
        return [[tuple(np.zeros(t.n_tokens) for t in e.turns) for e in group.episodes] for group in groups]
    template, logprobs = tools.template, tools.logprobs
    if template is None or logprobs is None:
        raise UsageError(
            f"{method} scores responses again with the policy's own model, which this policy does not have."
        )
    contexts = context_rows(groups)
    rows = list(contexts.rows)
    place: dict[tuple[int, int, int], int] = {}
    for g, group in enumerate(groups):
        for e, episode in enumerate(group.episodes):
            for t, turn in enumerate(episode.turns):
                note = notes[g][e][t]
                if note is not None and turn.n_tokens:
                    place[g, e, t] = len(rows)
                    rows.append(contexts.continued(template, (g, e, t), note, turn))
    scores = logprobs(rows)

    def gap(g: int, e: int, t: int, turn: Turn) -> np.ndarray:
        if (g, e, t) not in place:
            return np.zeros(turn.n_tokens)
        told = scores[place[g, e, t]][-turn.n_tokens :].astype(np.float64)
        return np.clip(np.nan_to_num(told - turn.response_logprobs, nan=0.0), -BOUND, BOUND)

    return [
        [tuple(gap(g, e, t, turn) for t, turn in enumerate(episode.turns)) for e, episode in enumerate(group.episodes)]
        for g, group in enumerate(groups)
    ]


def action_tokens(template: Conversation, turn: Turn) -> np.ndarray:
    """Which tokens of a response belong to its action, tags included: bool [n]; all of them where there is no tag."""
    low, high = 0, turn.n_tokens
    if "<action>" not in template.decode(turn.response_ids):
        return np.ones(turn.n_tokens, dtype=bool)
    while high - low > 1:  # the shortest beginning with the whole tag
        middle = (low + high) // 2
        if "<action>" in template.decode(turn.response_ids[:middle]):
            high = middle
        else:
            low = middle
    n_tag = len(template.encode("<action>"))
    return np.arange(turn.n_tokens) >= max(0, high - n_tag)


def success_of_another(group: Group, episode: Episode) -> Episode | None:
    """The shortest successful sibling that is not the episode itself; of several the first in alphabetical order of actions.

    Public descriptions say *the first*, which would depend on the order in which siblings were played.
    """
    others = [other for other in group.episodes if other.success and other is not episode]
    return min(others, key=lambda other: (len(other.turns), action_list(other)), default=None)


def action_list(episode: Episode) -> str:
    """The episode's actions in order, as a text for a note."""
    return "; ".join(turn.action for turn in episode.turns)
