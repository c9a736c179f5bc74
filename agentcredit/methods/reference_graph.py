"""The reference graph of ProAS: known transitions between abstract states, and how far each is from the goal (docs/methods/proas.md).

A node is an opaque key (of a state of one task, or of a role-level state shared by a task type), an edge u → v is labelled
by the actions that were seen to lead from u to v, with counts. :data:`GOAL` is the node that every success ends in.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

GOAL = "<GOAL>"

INF = float("inf")

Step = tuple[str, str, str]
"""A transition: state, action, next state."""

Transition = tuple[str, str, dict[str, float]]
"""An edge with what it is known by: state, next state, and how often each action led there."""


class ReferenceGraph:
    """Counted transitions with shortest distances and expected costs to the goal.

    Args:
        max_nodes: the least recently inserted nodes beyond this number are forgotten.
        min_count: edges seen less often are kept but not used.
    """

    def __init__(self, max_nodes: int = 20_000, min_count: float = 1.0) -> None:
        self.max_nodes = max_nodes
        self.min_count = min_count
        self._edges: dict[str, dict[str, dict[str, float]]] = {}  # u → v → action → count
        self._recency: OrderedDict[str, None] = OrderedDict()
        self._cache: tuple[dict[str, float], dict[str, set[str]]] | None = None

    @classmethod
    def of(cls, transitions: Iterable[Transition], min_count: float = 1.0) -> ReferenceGraph:
        """A graph of these counted transitions; nothing is forgotten. Counts of an edge that comes twice are added."""
        graph = cls(min_count=min_count)
        for u, v, actions in transitions:
            known = graph._edges.setdefault(u, {}).setdefault(v, {})
            for action, count in actions.items():
                known[action] = known.get(action, 0.0) + count
            graph._recency |= dict.fromkeys((u, v))
        graph.max_nodes = max(graph.max_nodes, graph.n_nodes)
        return graph

    def transitions(self) -> Iterator[Transition]:
        """All edges with their actions' counts, those that stay in their state and those below ``min_count`` too."""
        for u, followers in self._edges.items():
            for v, actions in followers.items():
                yield u, v, dict(actions)

    def insert(self, steps: Iterable[Step]) -> None:
        """Adds one to the count of every transition. Steps that stay in their state are kept: they have a probability."""
        for state, action, following in steps:
            actions = self._edges.setdefault(state, {}).setdefault(following, {})
            actions[action] = actions.get(action, 0.0) + 1.0
            for node in (state, following):
                self._recency[node] = None
                self._recency.move_to_end(node)
        self._evict()
        self._cache = None

    def decay(self, factor: float) -> None:
        """Multiplies all counts; edges that fall below ``min_count`` are forgotten."""
        for followers in self._edges.values():
            for following in list(followers):
                actions = {a: count * factor for a, count in followers[following].items()}
                if sum(actions.values()) < self.min_count:
                    del followers[following]
                else:
                    followers[following] = actions
        self._edges = {node: followers for node, followers in self._edges.items() if followers}
        alive = {GOAL, *self._edges, *(v for followers in self._edges.values() for v in followers)}
        self._recency = OrderedDict((node, None) for node in self._recency if node in alive)
        self._cache = None

    def edges(self) -> set[tuple[str, str]]:
        """Usable edges between different states."""
        return {
            (u, v)
            for u, followers in self._edges.items()
            for v, actions in followers.items()
            if u != v and sum(actions.values()) >= self.min_count
        }

    def nodes(self) -> list[str]:
        """All nodes, the goal included, the least recently inserted first."""
        return list(self._recency)

    @property
    def n_nodes(self) -> int:
        """Number of nodes, the goal included."""
        return len(self._recency)

    @property
    def reaches_goal(self) -> bool:
        """Whether any usable edge leads to the goal; without one the graph says nothing."""
        return len(self.goal_distances()) > 1

    def goal_distances(self) -> dict[str, float]:
        """Edges on the shortest path to the goal, for every node that has one (breadth-first, backwards)."""
        return self._searched()[0]

    def distances_with(self, own: Sequence[Step], states: Iterable[str] = ()) -> dict[str, float]:
        """Shortest distances to the goal for ``states`` and those of ``own``, once its transitions are added to the graph.

        Only what gets shorter is searched again, from the ends of the added edges backwards; the graph is not changed.
        States without a way to the goal are left out.
        """
        known, reverse = self._searched()
        shorter: dict[str, float] = {}
        own_reverse: dict[str, set[str]] = {}
        for state, _, following in own:
            if state != following:
                own_reverse.setdefault(following, set()).add(state)

        def distance(node: str) -> float:
            return shorter.get(node, known.get(node, INF))

        queue = deque(own_reverse)
        while queue:
            node = queue.popleft()
            through = distance(node) + 1
            if through == INF:
                continue
            for previous in (*reverse.get(node, ()), *own_reverse.get(node, ())):
                if through < distance(previous):
                    shorter[previous] = through
                    queue.append(previous)
        asked = {*states, *(node for state, _, following in own for node in (state, following))}
        return {node: distance(node) for node in asked if distance(node) < INF}

    def expected_costs_with(
        self, own: Sequence[Step], cap: float, states: Iterable[str] = (), sweeps: int = 1000
    ) -> dict[str, float]:
        """Expected number of steps to the goal under the best action, for stochastic environments.

        d(u) = min_a [1 + Σ_v p(v|u,a) d(v)] by value iteration from below, capped at ``cap``; probabilities are the counts'
        shares. Transitions of ``own`` that the graph lacks are added once. States without a way to the goal are left out.
        """
        reachable = self.distances_with(own, states)
        counts: dict[tuple[str, str], dict[str, float]] = {}
        for u, followers in self._edges.items():
            for v, actions in followers.items():
                if sum(actions.values()) >= self.min_count:
                    for action, count in actions.items():
                        counts.setdefault((u, action), {})[v] = count
        for state, action, following in own:
            counts.setdefault((state, action), {}).setdefault(following, 1.0)
        nodes = {
            node: i
            for i, node in enumerate(
                {GOAL: None, **dict.fromkeys(n for (u, _), to in counts.items() for n in (u, *to))}
            )
        }
        choice_u = np.array([nodes[u] for u, _ in counts], dtype=np.int64)
        outcome_choice = np.repeat(np.arange(len(counts)), [len(to) for to in counts.values()])
        outcome_v = np.array([nodes[v] for to in counts.values() for v in to], dtype=np.int64)
        probability = np.array([n / sum(to.values()) for to in counts.values() for n in to.values()])
        cost = np.zeros(len(nodes))
        for _ in range(sweeps):
            of_choice = 1.0 + np.bincount(outcome_choice, weights=probability * cost[outcome_v], minlength=len(counts))
            updated = np.full(len(nodes), float(cap))
            np.minimum.at(updated, choice_u, of_choice)
            updated[nodes[GOAL]] = 0.0
            moved = float(np.max(np.abs(updated - cost)))
            cost = updated
            if moved < 1e-9:
                break
        return {node: float(cost[nodes[node]]) for node in reachable}

    def state_dict(self) -> dict[str, Any]:
        """Nodes in the order of their last insertion, and edges as [from, to, action, count] by node number."""
        number = {node: i for i, node in enumerate(self._recency)}
        return {
            "nodes": list(number),
            "edges": [
                [number[u], number[v], action, count]
                for u, followers in self._edges.items()
                for v, actions in followers.items()
                for action, count in actions.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        nodes: list[str] = list(state["nodes"])
        self._recency = OrderedDict((node, None) for node in nodes)
        self._edges = {}
        for u, v, action, count in state["edges"]:
            self._edges.setdefault(nodes[u], {}).setdefault(nodes[v], {})[action] = float(count)
        self._cache = None

    def _searched(self) -> tuple[dict[str, float], dict[str, set[str]]]:
        if self._cache is None:
            reverse: dict[str, set[str]] = {}
            for u, v in self.edges():
                reverse.setdefault(v, set()).add(u)
            distance = {GOAL: 0.0}
            queue = deque([GOAL])
            while queue:
                node = queue.popleft()
                for previous in reverse.get(node, ()):
                    if previous not in distance:
                        distance[previous] = distance[node] + 1
                        queue.append(previous)
            self._cache = (distance, reverse)
        return self._cache

    def _evict(self) -> None:
        if GOAL in self._recency:
            self._recency.move_to_end(GOAL)  # the goal is never the oldest
        gone = set()
        while len(self._recency) > self.max_nodes:
            gone.add(self._recency.popitem(last=False)[0])
        if gone:
            self._edges = {
                u: kept
                for u, followers in self._edges.items()
                if u not in gone and (kept := {v: actions for v, actions in followers.items() if v not in gone})
            }
