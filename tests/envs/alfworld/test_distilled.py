"""The graphs of experiments/cpu/alfworld-distilled.json on real games: an expert walks down to the goal."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcredit.envs.client import PoolClient
from agentcredit.methods.distilled import DistilledSource
from agentcredit.methods.progress import trajectory_distances
from agentcredit.methods.reference_graph import GOAL

FILE = Path(__file__).parents[3] / "experiments" / "cpu" / "alfworld-distilled.json"

pytestmark = pytest.mark.alfworld


def test_the_file_knows_every_task_type(client: PoolClient) -> None:
    assert {key[2] for key in DistilledSource.read(FILE).graphs()} == set(client.spec().task_types)


def test_along_an_experts_episodes_the_distance_falls_to_zero(client: PoolClient) -> None:
    graphs = DistilledSource.read(FILE).milestone_graphs
    first: dict[str, str] = {}
    for info in client.tasks("valid_unseen"):
        first.setdefault(info.type, info.id)
    assert set(first) == set(graphs)
    for (kind, _), episode in zip(first.items(), client.experts(list(first.values())), strict=True):
        assert episode is not None
        found = graphs[kind]
        states = [found.milestone(result.lifted_key) for result in episode.results[:-1]] + [GOAL]
        assert None not in states
        distances = trajectory_distances(states, [step.action for step in episode.steps], found.graph, 50.0).tolist()
        assert distances == sorted(distances, reverse=True), kind
        assert distances[-1] == 0
        # Only steps that leave the state at its milestone gain nothing: the expert searches, and is on its way.
        assert distances[0] >= 3
        assert all(a - b == (s != t) for a, b, s, t in zip(distances, distances[1:], states, states[1:], strict=False))
