"""Where ProAS's reference graphs come from: the policy's own successes, or an expert's episodes (docs/methods/proas.md).

A source answers one question, ``graph(task, level)``. Written graphs (``distilled``) stand beside these two, and any
source can be spoilt on purpose (``imperfect``).
Level ``instance`` is one task's own graph, by ``state_key``; level ``lifted`` is shared by the tasks of one type, by
``lifted_key``. In ALFWorld a training game is seen about once, so an instance graph lives on the siblings of its group;
what a run learns over time gathers in the lifted graphs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, Protocol, get_args

from agentcredit.envs.base import ExpertEpisode
from agentcredit.episodes import Episode, Group, Task
from agentcredit.errors import UsageError
from agentcredit.methods.base import Tools
from agentcredit.methods.reference_graph import GOAL, ReferenceGraph, Step

Level = Literal["instance", "lifted"]
LEVELS: tuple[Level, ...] = get_args(Level)

GraphKey = tuple[str, ...]
"""Whose graph it is: ("instance", "<env>/<split>/<task id>") or ("lifted", env, task type)."""


class GraphSource(Protocol):
    """Reference graphs by task."""

    def before(self, groups: Sequence[Group], tools: Tools) -> None:
        """Called once a step, before its episodes are shaped."""
        ...

    def after(self, groups: Sequence[Group], tools: Tools) -> None:
        """Called once a step, after its episodes were shaped."""
        ...

    def graph(self, task: Task, level: Level) -> ReferenceGraph | None:
        """The task's graph, or None where there is none whose goal can be reached."""
        ...

    def nodes(self, episode: Episode, level: Level) -> list[str | None]:
        """The episode's states s_0..s_T as nodes of the level's graph, None where unknown."""
        ...

    def graphs(self) -> dict[GraphKey, ReferenceGraph]:
        """Every graph that there is, those without a way to the goal too."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        ...


class GraphStore:
    """Graphs of both levels; the least recently extended beyond ``max_graphs`` are forgotten."""

    def __init__(self, max_nodes: int, min_count: float, decay: float = 1.0, max_graphs: int = 4096) -> None:
        self.max_nodes, self.min_count, self.decay, self.max_graphs = max_nodes, min_count, decay, max_graphs
        self._graphs: OrderedDict[GraphKey, ReferenceGraph] = OrderedDict()

    def get(self, task: Task, level: Level) -> ReferenceGraph | None:
        """The graph, or None when it is missing or has no way to the goal."""
        graph = self._graphs.get(graph_key(task, level))
        return graph if graph is not None and graph.reaches_goal else None

    def all(self) -> dict[GraphKey, ReferenceGraph]:
        """Every graph, the least recently extended first."""
        return dict(self._graphs)

    def insert(self, task: Task, steps_of: Mapping[Level, Sequence[Step]]) -> None:
        """Adds a way through the task to its graph of each level."""
        for level, steps in steps_of.items():
            if not steps:
                continue
            key = graph_key(task, level)
            if key not in self._graphs:
                self._graphs[key] = ReferenceGraph(self.max_nodes, self.min_count)
            self._graphs.move_to_end(key)
            self._graphs[key].insert(steps)
        while len(self._graphs) > self.max_graphs:
            self._graphs.popitem(last=False)

    def age(self) -> None:
        """One update's decay of all counts."""
        if self.decay < 1.0:
            for graph in self._graphs.values():
                graph.decay(self.decay)

    def state_dict(self) -> list[Any]:
        """[key, graph] pairs, least recent first."""
        return [[list(key), graph.state_dict()] for key, graph in self._graphs.items()]

    def load_state_dict(self, state: Sequence[Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        self._graphs = OrderedDict()
        for key, graph_state in state:
            graph = ReferenceGraph(self.max_nodes, self.min_count)
            graph.load_state_dict(graph_state)
            self._graphs[tuple(key)] = graph


class SelfSource:
    """Graphs that grow from the policy's own successes.

    ``edge_scope="all"`` adds the transitions of failures too: true facts of a deterministic environment, without an edge
    to the goal. ``update_order="before"`` lets a step's successes guide the same step; ``after`` is strictly past.
    """

    def __init__(
        self, store: GraphStore, edge_scope: Literal["success", "all"], update_order: Literal["before", "after"]
    ) -> None:
        self.store, self.edge_scope, self.update_order = store, edge_scope, update_order

    def before(self, groups: Sequence[Group], tools: Tools) -> None:
        """Learns from the step's episodes, with update order ``before``."""
        if self.update_order == "before":
            self._learn(groups)

    def after(self, groups: Sequence[Group], tools: Tools) -> None:
        """Learns from the step's episodes, with update order ``after``."""
        if self.update_order == "after":
            self._learn(groups)

    def graph(self, task: Task, level: Level) -> ReferenceGraph | None:
        """See :class:`GraphSource`."""
        return self.store.get(task, level)

    def nodes(self, episode: Episode, level: Level) -> list[str | None]:
        """The states' own keys."""
        return episode_states(episode, level)

    def graphs(self) -> dict[GraphKey, ReferenceGraph]:
        """See :class:`GraphSource`."""
        return self.store.all()

    def state_dict(self) -> dict[str, Any]:
        """See :class:`GraphSource`."""
        return {"graphs": self.store.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`GraphSource`."""
        self.store.load_state_dict(state["graphs"])

    def _learn(self, groups: Sequence[Group]) -> None:
        self.store.age()
        for group in groups:
            for episode in group.episodes:
                if episode.success or self.edge_scope == "all":
                    self.store.insert(episode.task, {level: episode_steps(episode, level) for level in LEVELS})


class ExpertSource:
    """Graphs of an expert's episodes, asked for once per task.

    ``per_type=None`` (oracle): every task's own expert. ``per_type=n`` (demo): the first n tasks of each type that training
    meets; other tasks of the type have only the lifted graph of these demonstrations.
    """

    def __init__(self, store: GraphStore, per_type: int | None = None) -> None:
        self.store, self.per_type = store, per_type
        self._asked: set[str] = set()
        self._given: dict[str, int] = {}

    def before(self, groups: Sequence[Group], tools: Tools) -> None:
        """Asks the expert about tasks that are new.

        Raises:
            UsageError: the environment offers no expert.
        """
        if tools.expert is None:
            raise UsageError(
                "proas: this environment offers no expert, so source=oracle or demo cannot be used; set source=self."
            )
        for task in (group.task for group in groups):
            enough = self.per_type is not None and self._given.get(task.type, 0) >= self.per_type
            if enough or _task_key(task) in self._asked:
                continue
            self._asked.add(_task_key(task))
            episode = tools.expert(task.id)
            if episode is not None and episode.results and episode.results[-1].success:
                self._given[task.type] = self._given.get(task.type, 0) + 1
                self.store.insert(task, {level: expert_steps(episode, level) for level in LEVELS})

    def after(self, groups: Sequence[Group], tools: Tools) -> None:
        """Nothing: an expert does not learn from the policy."""

    def graph(self, task: Task, level: Level) -> ReferenceGraph | None:
        """See :class:`GraphSource`."""
        return self.store.get(task, level)

    def nodes(self, episode: Episode, level: Level) -> list[str | None]:
        """The states' own keys."""
        return episode_states(episode, level)

    def graphs(self) -> dict[GraphKey, ReferenceGraph]:
        """See :class:`GraphSource`."""
        return self.store.all()

    def state_dict(self) -> dict[str, Any]:
        """See :class:`GraphSource`."""
        return {"graphs": self.store.state_dict(), "asked": sorted(self._asked), "given": self._given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`GraphSource`."""
        self.store.load_state_dict(state["graphs"])
        self._asked = set(state["asked"])
        self._given = dict(state["given"])


def episode_states(episode: Episode, level: Level) -> list[str | None]:
    """Abstract states s_0..s_T of an episode, None where unknown; the last one of a success is :data:`GOAL`."""
    if not episode.turns:
        return []
    if level == "instance":
        states = [turn.state_key for turn in episode.turns] + [episode.turns[-1].next_state_key]
    else:
        states = [turn.lifted_key for turn in episode.turns] + [episode.turns[-1].next_lifted_key]
    if episode.success:
        states[-1] = GOAL
    return states


def known_steps(states: Sequence[str | None], actions: Sequence[str]) -> list[Step]:
    """The transitions whose both ends are known."""
    pairs = zip(pairwise(states), actions, strict=True)
    return [(s, action, following) for (s, following), action in pairs if s is not None and following is not None]


def episode_steps(episode: Episode, level: Level) -> list[Step]:
    """An episode's transitions; the last one of a success leads to the goal."""
    if not episode.turns:
        return []
    return known_steps(episode_states(episode, level), [turn.action for turn in episode.turns])


def expert_steps(episode: ExpertEpisode, level: Level) -> list[Step]:
    """An expert's transitions; the last one leads to the goal."""
    states = [r.state_key if level == "instance" else r.lifted_key for r in episode.results]
    return known_steps([*states[:-1], GOAL], [step.action for step in episode.steps])


def graph_key(task: Task, level: Level) -> GraphKey:
    """Whose graph a task uses at a level."""
    return ("instance", _task_key(task)) if level == "instance" else ("lifted", task.env, task.type)


def _task_key(task: Task) -> str:
    return f"{task.env}/{task.split}/{task.id}"
