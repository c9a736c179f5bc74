"""Where an episode went wrong, and what to say about it: the hints that AHEAD's teacher is given (docs/methods/ahead.md).

Each detector reads one episode beside its siblings and names turns with a hint in words. What a model found (``llm``,
:mod:`agentcredit.methods.failures`) comes in from outside. No hint quotes a gold answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from agentcredit.episodes import Episode, Group, StopReason
from agentcredit.methods.graphgpo import group_distances
from agentcredit.methods.reference_graph import GOAL

Detector = Literal["rules", "peer", "arg", "llm"]

Hints = dict[int, str]
"""Turn to hint."""


def error_steps(
    group: Group,
    episode: Episode,
    detectors: Sequence[Detector],
    limit: int,
    told: Mapping[int, str] | None = None,
) -> Hints:
    """The hints of all detectors, an earlier detector's first where two name one turn; the ``limit`` earliest turns.

    Early errors cause later ones, which is why the earliest are kept (our choice). ``told`` is what the detector ``llm``
    found. A hint that quotes a gold answer is no hint: another detector's takes its place.
    """
    found: Hints = {}
    for name in detectors:
        hints = (told or {}) if name == "llm" else _DETECTORS[name](group, episode)
        for t, hint in hints.items():
            if not quotes(hint, episode.task.secrets):
                found.setdefault(t, hint)
    return {t: found[t] for t in sorted(found)[:limit]}


def quotes(text: str, secrets: Sequence[str]) -> bool:
    """Whether a text holds one of the secrets as whole words, whatever the case, the spaces and the punctuation."""
    words = f" {_plain(text)} "
    return any(plain and f" {plain} " in words for plain in map(_plain, secrets))


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def by_rules(group: Group, episode: Episode) -> Hints:
    """What is wrong whatever the task: an invalid action, a lower score, the end, nothing done, a repetition, a way back.

    Scores that fall, and actions that end a task, are ScienceWorld's.
    """
    hints: Hints = {}
    done: set[tuple[str, str]] = set()
    seen: set[str] = set()
    for t, turn in enumerate(episode.turns):
        state, after = turn.state_key, turn.next_state_key
        if not turn.valid:
            hints[t] = "This action is not possible here. Choose one that is."
        elif turn.reward < 0:
            hints[t] = "This action lowers the score. Leave it."
        elif t == len(episode.turns) - 1 and episode.stop_reason is StopReason.FAILURE:
            hints[t] = "This action ends the task in failure. Do something else first."
        elif state is not None and (state, turn.action) in done:
            hints[t] = "You have done this here before, with the same result. Do something else."
        elif state is not None and after == state:
            hints[t] = "This action changes nothing. Do something that brings the task forward."
        elif after is not None and after in seen:
            hints[t] = "This leads back to where you have been, with nothing gained."
        if state is not None:
            done.add((state, turn.action))
            seen.add(state)
    return hints


def by_peer(group: Group, episode: Episode) -> Hints:
    """Where the episode left the way of the successful sibling that it followed longest: what that sibling did there."""
    states = _states(episode)
    best: tuple[int, str] | None = None
    for other in sorted((e for e in group.episodes if e.success and e is not episode), key=lambda e: len(e.turns)):
        way = _states(other)
        shared = 0
        while shared < min(len(states), len(way)) and states[shared] is not None and states[shared] == way[shared]:
            shared += 1
        if 0 < shared <= min(len(episode.turns), len(other.turns)) and (best is None or shared > best[0]):
            best = (shared, other.turns[shared - 1].action)
    if best is None:
        return {}
    turn = best[0] - 1  # the last turn from a state that both stood in
    if episode.turns[turn].action == best[1]:
        return {}
    return {turn: f"Another attempt that succeeded did this here: {best[1]}"}


def by_graph(group: Group, episode: Episode) -> Hints:
    """Steps that led away from the goal, in the graph of all siblings' transitions (a regret of 2 or more)."""
    if not any(other.success for other in group.episodes):
        return {}
    known = [other for other in group.episodes if other.turns and None not in _states(other)]
    if not any(other is episode for other in known):
        return {}
    ways = [
        [*(s or "" for s in _states(other)[:-1]), GOAL if other.success else _states(other)[-1] or ""]
        for other in known
    ]
    distances = group_distances(ways)
    # The action that led nearest to the goal, from every state that any sibling stood in.
    best: dict[str, tuple[float, str]] = {}
    for other, way, d_T in zip(known, ways, distances, strict=True):
        for t, turn in enumerate(other.turns):
            best[way[t]] = min(best.get(way[t], (float("inf"), "")), (float(d_T[t + 1]), turn.action))
    hints: Hints = {}
    index = next(n for n, other in enumerate(known) if other is episode)
    for t, turn in enumerate(episode.turns):
        regret = 1 - (distances[index][t] - distances[index][t + 1])
        left, action = best[ways[index][t]]
        if regret >= 2:
            better = (
                f" From here this is known to lead nearer: {action}"
                if left < distances[index][t + 1] and action != turn.action
                else ""
            )
            hints[t] = f"This leads away from the goal.{better}"
    return hints


def _states(episode: Episode) -> list[str | None]:
    """State keys before each turn and after the last."""
    if not episode.turns:
        return []
    return [*(turn.state_key for turn in episode.turns), episode.turns[-1].next_state_key]


_DETECTORS: Mapping[str, Callable[[Group, Episode], Hints]] = {"rules": by_rules, "peer": by_peer, "arg": by_graph}
