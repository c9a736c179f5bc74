"""How far each step of an episode got on a reference graph: distances, progress, regret (docs/methods/proas.md).

All arrays are float64; NaN stands for "unknown" (a state without a key), and what follows from it is unknown as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from agentcredit.methods.graph_sources import known_steps
from agentcredit.methods.reference_graph import ReferenceGraph

ProgressMode = Literal["record", "edge", "loop_erased"]
Deviation = Literal["regret", "remaining", "excess", "temp"]
Cost = Literal["shortest", "expected"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One episode of T turns against one graph.

    ``distance``   d̂_0..d̂_T: steps to the goal, [T+1].
    ``on_map``     share of the known states that have a way to the goal on the graph alone, without the episode's own steps.
    ``gained``     d̂_t − d̂_{t+1}, [T]: what the step itself gained, at most 1 with shortest distances.
    ``useful``     1 where the step counts as progress under the mode asked for, 0 where not, [T].
    ``deviation``  how far the step led away, ≥ 0, for sharing blame, [T].
    ``novel``      1 where the step led to a state that the episode had not visited before, [T].
    """

    distance: np.ndarray
    on_map: float
    gained: np.ndarray
    useful: np.ndarray
    deviation: np.ndarray
    novel: np.ndarray


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the levels say together about each step: arrays [T], NaN where no level knows.

    The levels see different things. Under partial observability a task's own graph knows where the object is and calls
    every look elsewhere a detour (regret up to 2); the role-level graph calls it standing still (regret 1) and sees
    milestones, also on a way that the task's graph does not have. A step gets the better of its verdicts: progress if
    either says so, and the smaller deviation. So searching is blamed less than undoing what was achieved, which both levels see.
    """

    useful: np.ndarray
    deviation: np.ndarray
    gained: np.ndarray
    novel: np.ndarray

    @classmethod
    def of(cls, views: Sequence[Progress]) -> Verdict:
        """The better of the verdicts, step by step; novelty as the first (finest) level that knows the state sees it."""
        novel_T = views[0].novel
        for view in views[1:]:
            novel_T = np.where(np.isnan(novel_T), view.novel, novel_T)
        return cls(
            useful=np.fmax.reduce([view.useful for view in views]),
            deviation=np.fmin.reduce([view.deviation for view in views]),
            gained=np.fmax.reduce([view.gained for view in views]),
            novel=novel_T,
        )


def measure(
    states: Sequence[str | None],
    actions: Sequence[str],
    graph: ReferenceGraph,
    *,
    d_max: float,
    mode: ProgressMode = "record",
    deviation: Deviation = "regret",
    slack: bool = False,
    cost: Cost = "shortest",
    visited: Sequence[str | None] | None = None,
) -> Progress:
    """Progress of an episode's states s_0..s_T (the goal last, if it succeeded) on a graph that has a way to the goal.

    ``visited`` are finer names of the states, by which it is judged whether one is new; by default ``states`` themselves.
    """
    distance_T1 = trajectory_distances(states, actions, graph, d_max, cost)
    gained_T = distance_T1[:-1] - distance_T1[1:]
    on_graph = graph.goal_distances()
    known = [s for s in states if s is not None]
    novel_T = _novelty(states if visited is None else visited)
    return Progress(
        distance=distance_T1,
        on_map=float(np.mean([s in on_graph for s in known])) if known else 0.0,
        gained=gained_T,
        useful=_useful(states, distance_T1, gained_T, novel_T, mode, slack),
        deviation=_deviation(distance_T1, gained_T, deviation),
        novel=novel_T,
    )


def trajectory_distances(
    states: Sequence[str | None], actions: Sequence[str], graph: ReferenceGraph, d_max: float, cost: Cost = "shortest"
) -> np.ndarray:
    """d̂_0..d̂_T of the states, float64 [T+1] (docs/methods/proas.md).

    The episode's own transitions are valid facts, so they join the graph: its loops are found even where it is off the map.
    A state without a way to the goal is one step further than the one it was first reached from (``d_max`` at the start), so
    that one step gains at most 1.
    """
    own = known_steps(states, actions)
    known = [state for state in states if state is not None]
    shortest = cost == "shortest"
    found = graph.distances_with(own, known) if shortest else graph.expected_costs_with(own, d_max, known)
    distance: dict[str, float] = {}
    previous = d_max
    for state in known:
        if state not in distance:
            distance[state] = min(d_max, found.get(state, previous + 1.0))
        previous = distance[state]
    if shortest:
        _relax(distance, [(s, following) for s, _, following in own])
    return np.array([np.nan if s is None else distance[s] for s in states])


def loop_erased(states: Sequence[str | None]) -> np.ndarray:
    """Which steps are left when every loop is cut out, in the order in which loops close: bool [T]."""
    path: list[tuple[str | None, int]] = [(states[0], -1)]  # a state, and the step that led to it
    position = {states[0]: 0}
    for step, state in enumerate(states[1:]):
        if state is not None and state in position:
            for dropped, _ in path[position[state] + 1 :]:
                position.pop(dropped, None)
            del path[position[state] + 1 :]
        else:
            position[state] = len(path)
            path.append((state, step))
    kept = np.zeros(len(states) - 1, dtype=bool)
    kept[[step for _, step in path if step >= 0]] = True
    return kept


def _relax(distance: dict[str, float], own: Sequence[tuple[str, str]]) -> None:
    """Lets guesses for states off the map follow from one another: d[u] ≤ 1 + d[v] along the episode's own steps."""
    changed = True
    while changed:
        changed = False
        for u, v in reversed(own):
            if distance[v] + 1.0 < distance[u]:
                distance[u] = distance[v] + 1.0
                changed = True


def _novelty(states: Sequence[str | None]) -> np.ndarray:
    seen: set[str | None] = set(states[:1])
    novel_T = np.full(len(states) - 1, np.nan)
    for t, state in enumerate(states[1:]):
        if state is not None:
            novel_T[t] = state not in seen
            seen.add(state)
    return novel_T


def _useful(
    states: Sequence[str | None],
    distance_T1: np.ndarray,
    gained_T: np.ndarray,
    novel_T: np.ndarray,
    mode: ProgressMode,
    slack: bool,
) -> np.ndarray:
    """1 progress, 0 none, NaN unknown.

    With ``slack`` a step to a state not seen before counts if its distance equals what it had to beat: a detour of equal
    length. Standing still and loops never do.
    """
    if mode == "record":
        best_T = np.fmin.accumulate(distance_T1)[:-1]  # fmin passes over unknown states
        beaten_T = best_T - distance_T1[1:]
    else:
        beaten_T = gained_T
    useful_T = beaten_T > 0
    if slack:
        useful_T |= (beaten_T == 0) & (novel_T == 1)
    if mode == "loop_erased":
        useful_T &= loop_erased(states)
    unknown_T = np.array([a is None or b is None for a, b in pairwise(states)], dtype=bool)
    return np.where(unknown_T, np.nan, useful_T.astype(np.float64))


def _deviation(distance_T1: np.ndarray, gained_T: np.ndarray, kind: Deviation) -> np.ndarray:
    """How far each step led away from the goal, in the reading asked for; NaN where unknown.

    ``regret`` 1 − gained; ``remaining`` the way left against the way at the start; ``excess`` by how much the episode's
    actual rest is longer than needed. ``temp`` is the regret too: its softmax is taken where the blame is shared.
    """
    steps_left_T = np.arange(len(gained_T), 0, -1, dtype=np.float64)
    if kind == "remaining":
        known = distance_T1[~np.isnan(distance_T1)]
        deviation_T = distance_T1[1:] / max(1.0, known[0] if len(known) else 1.0)
    elif kind == "excess":
        deviation_T = np.maximum(0.0, steps_left_T + distance_T1[-1] - distance_T1[:-1])
    else:
        deviation_T = np.maximum(0.0, 1.0 - gained_T)  # an expected cost can fall by more than 1 in a lucky step
    return np.where(np.isnan(gained_T), np.nan, deviation_T)
