"""Reference graphs spoilt on purpose, to see how much of ProAS survives a wrong map (docs/methods/proas.md).

Edges and nodes go missing, edges that lead nowhere real appear, and edges to the goal start from elsewhere. Whether, is
drawn from (seed, graph, edge) and nothing else: what is missing stays missing while the graph grows, and a resume meets
the same graph. The wrapped source keeps its clean graphs, and only they are stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentcredit.episodes import Episode, Group, Task
from agentcredit.methods.base import Tools
from agentcredit.methods.graph_sources import GraphKey, GraphSource, Level, graph_key
from agentcredit.methods.reference_graph import GOAL, ReferenceGraph, Transition
from agentcredit.policies.noise import uniforms


@dataclass(frozen=True)
class Corruption:
    """Probabilities in [0, 1] that an edge goes missing, a node does, a false edge appears, an edge to the goal is moved.

    ``spurious`` is per edge of the clean graph: 0.3 adds about three false edges to ten true ones.
    """

    edges: float = 0.0
    nodes: float = 0.0
    spurious: float = 0.0
    goal: float = 0.0
    seed: int = 0

    def __bool__(self) -> bool:
        return any((self.edges, self.nodes, self.spurious, self.goal))


class ImperfectSource:
    """Another source, seen through a corruption."""

    def __init__(self, source: GraphSource, corruption: Corruption) -> None:
        self.source, self.corruption = source, corruption
        self._known: dict[GraphKey, tuple[ReferenceGraph, float]] = {}
        self._shares: dict[GraphKey, float] = {}

    @property
    def changed_share(self) -> float | None:
        """Mean share of edges removed, moved or added, over the graphs used since the step began; None without any."""
        return sum(self._shares.values()) / len(self._shares) if self._shares else None

    def before(self, groups: Sequence[Group], tools: Tools) -> None:
        """See :class:`GraphSource`."""
        self.source.before(groups, tools)
        self._known, self._shares = {}, {}  # graphs change here and in after(), never between

    def after(self, groups: Sequence[Group], tools: Tools) -> None:
        """See :class:`GraphSource`."""
        self.source.after(groups, tools)
        self._known = {}

    def graph(self, task: Task, level: Level) -> ReferenceGraph | None:
        """The spoilt graph, or None when its goal can no longer be reached."""
        clean = self.source.graph(task, level)
        if clean is None:
            return None
        key = graph_key(task, level)
        if key not in self._known:
            self._known[key] = corrupt(clean, self.corruption, key)
        spoilt, self._shares[key] = self._known[key]
        return spoilt if spoilt.reaches_goal else None

    def nodes(self, episode: Episode, level: Level) -> list[str | None]:
        """See :class:`GraphSource`: what a state is called is not spoilt."""
        return self.source.nodes(episode, level)

    def graphs(self) -> dict[GraphKey, ReferenceGraph]:
        """Every graph as it is used: spoilt."""
        return {key: corrupt(clean, self.corruption, key)[0] for key, clean in self.source.graphs().items()}

    def state_dict(self) -> dict[str, Any]:
        """The clean source's."""
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        self.source.load_state_dict(state)
        self._known, self._shares = {}, {}


def corrupt(clean: ReferenceGraph, corruption: Corruption, key: GraphKey) -> tuple[ReferenceGraph, float]:
    """A spoilt copy of the graph, and how many edges were removed, moved or added for each that it had.

    A false edge, or the new start of an edge to the goal, is at the node that follows a drawn point on a circle on which
    every node has a place of its own: a node that joins the graph moves only the ends that its arc takes over.
    """
    c = corruption

    def chance(probability: float, *what: str) -> bool:
        return probability > 0 and uniforms((c.seed, *key, *what), 1)[0] < probability

    usable = clean.edges()
    kept = {node for node in clean.nodes() if node == GOAL or not chance(c.nodes, "node", node)}
    drawing = c.spurious > 0 or c.goal > 0
    circle = sorted((float(uniforms((c.seed, *key, "place", node), 1)[0]), node) for node in kept) if drawing else []
    starts = [place for place in circle if place[1] != GOAL]
    true_edges: list[Transition] = []
    false_edges: list[Transition] = []
    changed = 0
    for u, v, actions in clean.transitions():
        if u not in kept or v not in kept:
            changed += (u, v) in usable
            continue
        if (u, v) not in usable:
            true_edges.append((u, v, actions))
            continue
        if chance(c.edges, "edge", u, v):
            changed += 1
        elif v == GOAL and chance(c.goal, "goal", u):
            others = [place for place in starts if place[1] != u]
            if others:
                false_edges.append((_at(others, (c.seed, *key, "goal from", u)), GOAL, actions))
            changed += bool(others)
            true_edges += [] if others else [(u, v, actions)]
        else:
            true_edges.append((u, v, actions))
        if chance(c.spurious, "spurious", u, v) and starts:
            start = _at(starts, (c.seed, *key, "from", u, v))
            end = _at(circle, (c.seed, *key, "to", u, v))
            if start != end and (start, end) not in usable:
                false_edges.append((start, end, actions))
                changed += 1
    spoilt = ReferenceGraph.of([*true_edges, *false_edges], clean.min_count)
    return spoilt, changed / max(1, len(usable))


def _at(circle: Sequence[tuple[float, str]], key: tuple[str | int, ...]) -> str:
    """The first node at or after the point that the key names, once round."""
    return circle[bisect_left(circle, (float(uniforms(key, 1)[0]), "")) % len(circle)][1]
