"""A reference graph for people and other tools: as text, as Graphviz DOT, as JSON.

Nodes are sorted by their distance to the goal and numbered in that order, so that the same graph always reads the same.
A node's key is shown one field a line: ``at fridge 1 | hold egg 1`` are two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentcredit.methods.reference_graph import GOAL, INF, ReferenceGraph

Count = int | float

_SHOWN = 4
"""Actions of an edge that text and DOT name; JSON has all."""


@dataclass(frozen=True)
class Node:
    """A node; ``distance`` is in edges to the goal, None where there is no way."""

    number: int
    key: str
    distance: int | None

    @property
    def fields(self) -> list[str]:
        """The key's fields."""
        return [field.strip() for field in self.key.split("|") if field.strip()] or [self.key]


@dataclass(frozen=True)
class Edge:
    """An edge between numbered nodes. ``shortest``: it lies on a shortest way; ``used``: it was seen often enough to count."""

    start: int
    end: int
    actions: dict[str, Count]
    shortest: bool
    used: bool

    @property
    def count(self) -> Count:
        """How often it was seen, by any action."""
        return _whole(sum(self.actions.values()))


@dataclass(frozen=True)
class Drawing:
    """A graph, laid out for reading."""

    name: str
    nodes: list[Node]
    edges: list[Edge]


def drawing(name: str, graph: ReferenceGraph) -> Drawing:
    """The graph's nodes by distance and key, its edges by their ends; steps that stay where they are left out."""
    distance = graph.goal_distances()
    keys = sorted(graph.nodes(), key=lambda key: (distance.get(key, INF), key))
    number = {key: i for i, key in enumerate(keys)}
    usable = graph.edges()
    edges = [
        Edge(
            number[u],
            number[v],
            {action: _whole(count) for action, count in sorted(actions.items(), key=lambda item: (-item[1], item[0]))},
            shortest=(u, v) in usable and v in distance and distance[u] == distance[v] + 1,
            used=(u, v) in usable,
        )
        for u, v, actions in graph.transitions()
        if u != v
    ]
    nodes = [Node(i, key, int(distance[key]) if key in distance else None) for key, i in number.items()]
    return Drawing(name, nodes, sorted(edges, key=lambda edge: (edge.start, edge.end)))


def to_text(drawn: Drawing) -> str:
    """Nodes with their ways out; ``*`` marks a shortest way, ``-`` an edge seen too seldom to be used."""
    lines = [f"{drawn.name}: {len(drawn.nodes)} nodes, {len(drawn.edges)} edges"]
    if sum(node.distance is not None for node in drawn.nodes) < 2:  # the goal itself is one
        lines.append("No way to the goal is known.")
    for node in drawn.nodes:
        far = "no way to the goal" if node.distance is None else f"distance {node.distance}"
        lines += ["", f"[{node.number}] {far}", *(f"    {field}" for field in node.fields)]
        for edge in (edge for edge in drawn.edges if edge.start == node.number):
            sign = "*" if edge.shortest else " " if edge.used else "-"
            lines.append(f"  {sign} -> [{edge.end}]  {_actions(edge, ', ')}".rstrip())
    return "\n".join(lines) + "\n"


def to_dot(drawn: Drawing) -> str:
    """Graphviz DOT: the goal in a double circle, shortest ways bold, edges seen too seldom dashed."""
    lines = [f"digraph {_quoted([drawn.name])} {{", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for node in drawn.nodes:
        far = "no way" if node.distance is None else f"d = {node.distance}"
        goal = ["shape=doublecircle"] if node.key == GOAL else []
        label = ["GOAL"] if goal else [*node.fields, far]
        lines.append(f"  n{node.number} [{', '.join([f'label={_quoted(label)}', *goal])}];")
    for edge in drawn.edges:
        style = ["style=bold", "penwidth=2"] if edge.shortest else [] if edge.used else ["style=dashed"]
        label = f"label={_quoted(_actions(edge, chr(10)).split(chr(10)))}"
        lines.append(f"  n{edge.start} -> n{edge.end} [{', '.join([label, *style])}];")
    return "\n".join([*lines, "}"]) + "\n"


def to_plain(drawn: Drawing) -> dict[str, Any]:
    """JSON values."""
    return {
        "name": drawn.name,
        "nodes": [{**asdict(node), "fields": node.fields} for node in drawn.nodes],
        "edges": [{**asdict(edge), "count": edge.count} for edge in drawn.edges],
    }


def _actions(edge: Edge, separator: str) -> str:
    """The most frequent actions with their counts; an edge of a written graph has none."""
    named = [f"{action} ×{count}" for action, count in edge.actions.items() if action]
    more = [f"and {len(named) - _SHOWN} more"] if len(named) > _SHOWN else []
    return separator.join(named[:_SHOWN] + more)


def _quoted(lines: Sequence[str]) -> str:
    """A DOT string of several lines: quotes and backslashes escaped, control characters shown as spaces."""
    safe = [re.sub(r"[\x00-\x1f]", " ", line).replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(safe) + '"'


def _whole(count: float) -> Count:
    return int(count) if float(count).is_integer() else round(float(count), 4)
