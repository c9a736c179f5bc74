"""The reference graphs of a run: from its last whole checkpoint, or built again from its stored episodes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np

from agentcredit.episodes import Episode, episode_from_json, grouped
from agentcredit.errors import MissingError, UsageError
from agentcredit.methods.base import Tools
from agentcredit.methods.graph_sources import GraphKey, GraphSource
from agentcredit.methods.proas import Proas
from agentcredit.methods.reference_graph import ReferenceGraph
from agentcredit.methods.registry import build
from agentcredit.rundir import RunDir
from agentcredit.training.checkpoint import latest_values

Graphs = dict[GraphKey, ReferenceGraph]


def graphs_of(run: RunDir) -> tuple[Graphs, str]:
    """The run's graphs as its method used them, and where they were read.

    Raises:
        MissingError: its method keeps no graph, or there is neither a checkpoint nor a stored episode to read one from.
    """
    source = next((part.source for part in build(run.config.method).parts() if isinstance(part, Proas)), None)
    if source is None:
        raise MissingError(
            f"Run {run.name} has no reference graph: its method is {run.config.method.name}, and proas is the one that keeps them."
        )
    values = latest_values(run.checkpoints)
    if values is not None:
        step, extra = values
        source.load_state_dict(extra["method"][Proas.name])
        return source.graphs(), f"checkpoint of step {step}"
    steps = run.episode_steps()
    if run.config.method.params.get("source", "self") != "self" or not steps:
        raise MissingError(
            f"Run {run.name} has no checkpoint yet, and no stored episodes to build its graphs from; "
            "`agentcredit train` writes one every train.checkpoint_every steps."
        )
    for step in steps:
        _learn(source, step, (episode_from_json(record) for record in run.read_episodes(step)))
    return source.graphs(), f"stored episodes of steps {steps[0]} to {steps[-1]}"


def find(graphs: Graphs, name: str, level: str = "") -> GraphKey:
    """The graph that a task id (with or without ``env/split/`` before it, or its beginning) or a task type names.

    Raises:
        UsageError: none does, or several do.
    """
    keys = [key for key in graphs if level in ("", key[0])]
    names = {key: _names(key) for key in keys}
    exact = [key for key in keys if name in names[key]]
    found = exact or [key for key in keys if any(known.startswith(name) for known in names[key])]
    if len(found) == 1:
        return found[0]
    at = f" at level {level}" if level else ""
    if found:
        shown = ", ".join(title(key) for key in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise UsageError(f"Several graphs{at} go by '{name}': {shown}{more}. Write more of it, or give --level.")
    known = sorted({each for key in keys for each in names[key]})
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or known[:3]
    hint = f" Nearest: {', '.join(close)}." if close else ""
    raise UsageError(f"There is no graph of '{name}'{at} among the run's {len(keys)}.{hint}")


def title(key: GraphKey) -> str:
    """The graph's name for people: ``instance alfworld/train/<id>``, ``lifted alfworld/<type>``."""
    return f"{key[0]} {'/'.join(key[1:])}"


def summary(graphs: Graphs) -> list[dict[str, Any]]:
    """What there is at each level: how many graphs, with a way to the goal, nodes in all, and the largest."""
    rows = []
    for level in dict.fromkeys(key[0] for key in graphs):
        of_level = {key: graph for key, graph in graphs.items() if key[0] == level}
        largest = max(of_level, key=lambda key: of_level[key].n_nodes)
        rows.append(
            {
                "level": level,
                "graphs": len(of_level),
                "with_goal": sum(graph.reaches_goal for graph in of_level.values()),
                "nodes": sum(graph.n_nodes for graph in of_level.values()),
                "largest": "/".join(largest[1:]),
                "largest_nodes": of_level[largest].n_nodes,
            }
        )
    return rows


def _names(key: GraphKey) -> tuple[str, ...]:
    """What a user may call it: the whole name, and the id or type alone (an id may have slashes of its own)."""
    whole = "/".join(key[1:])
    alone = whole.split("/", 2)[-1] if key[0] == "instance" else key[-1]
    return (whole, alone)


def _learn(source: GraphSource, step: int, episodes: Iterable[Episode]) -> None:
    groups = grouped(episodes)
    tools = Tools(step=step, rng=np.random.default_rng(0), max_turns=1)  # a source asks for neither
    source.before(groups, tools)
    source.after(groups, tools)
