"""GraphGPO: one graph of all siblings' transitions; a step is worth how near it leads to the goal (docs/methods/graphgpo.md).

    d(s)   edges from s to success in the group's graph; without a way, one more than the largest distance
    ret_t  scale · γ^d(s_{t+1}),  or with ``normalize_distance``  scale · γ^(d(s_{t+1}) − d(s_t) + 1)
    A      ω A^S + ω_E A^E          A^S among turns from the same state, as in gigpo; A^E as in grpo

A failed sibling's good steps are worth as much as a successful one's. Unlike the graph of proas, this one is forgotten
with the group. To reproduce the public code: ``baseline_over=step``, ``degenerate=public``, penalties ``before_norm``,
``scale=10`` (its rewards are 10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Episode, Group
from agentcredit.methods.base import Advantages, Kind, Paper, Params
from agentcredit.methods.gigpo import Anchor, anchor_of, step_advantages, step_groups
from agentcredit.methods.outcome import Degenerate, Over, fit_normalised, label_of, relative, split_turns
from agentcredit.methods.reference_graph import GOAL, ReferenceGraph


class GraphgpoParams(Params):
    """Parameters of GraphGPO."""

    gamma: float = Field(
        default=0.1,
        gt=0,
        le=1,
        validation_alias=AliasChoices("gamma", "γ"),
        description="Discount of a step of distance: 0.1 makes one step nearer worth ten times as much.",
    )
    normalize_distance: bool = Field(
        default=False, description="Value the change of distance instead of the distance that is left."
    )
    omega: float = Field(
        default=1.0,
        ge=0,
        validation_alias=AliasChoices("omega", "ω", "step_advantage_w"),
        description="Weight of the step's part; 0 gives GRPO (times episode_weight).",
    )
    episode_weight: float = Field(
        default=1.0,
        ge=0,
        validation_alias=AliasChoices("episode_weight", "episode_advantage_w"),
        description="Weight of the episode's part.",
    )
    scale: float = Field(
        default=1.0,
        gt=0,
        description="Return of a step into success: the environment's reward of a success (public code: 10). Matters without std.",
    )
    std: bool = Field(default=True, description="Divide both parts by their deviation; false: mean only.")
    baseline_over: Over = Field(
        default="trajectory",
        validation_alias=AliasChoices("baseline_over", "over"),
        description="Statistic of the episode's part: over trajectories, or over steps as in public code.",
    )
    anchor: Anchor = Field(
        default="state_key",
        description="What makes two states the same: the environment's state key (the text where it gives none), or the text.",
    )
    similarity: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="States whose keys are at least this alike (difflib ratio) are one node of the graph; 0: exact.",
    )
    degenerate: Degenerate = Field(
        default="zero",
        validation_alias=AliasChoices("degenerate", "singleton"),
        description="Episode part of a group without contrast (one score, or all equal): 0, or what public code gives.",
    )


class Graphgpo:
    """Episode-relative plus distance-relative advantage."""

    name: ClassVar[str] = "graphgpo"
    kind: ClassVar[Kind] = "estimator"
    Params: ClassVar[type[GraphgpoParams]] = GraphgpoParams
    paper: ClassVar[Paper] = Paper(
        "Beyond Trajectory-Level Attribution: Graph-Based Credit Assignment for Agentic Reinforcement Learning",
        "2605.26684",
        "ICML 2026",
    )
    summary: ClassVar[str] = "GRPO plus a comparison, from the same state, of how near each action led to the goal."
    neutral: ClassVar[Mapping[str, Any]] = {"omega": 0.0}

    def __init__(self, params: GraphgpoParams) -> None:
        self.params = params
        self._fit = partial(fit_normalised, std=params.std, degenerate=params.degenerate)

    def advantages(self, groups: Sequence[Group], metrics: dict[str, float], penalty: float = 0.0) -> Advantages:
        """One float64 array [T] per episode. ``penalty`` lowers an invalid turn's episode score and its step return."""
        p = self.params
        result: Advantages = []
        nearer: dict[bool, list[bool]] = {True: [], False: []}
        for group in groups:
            states_ET = [_states(episode, p.anchor) for episode in group.episodes]
            distances_ET = group_distances(states_ET, p.similarity)
            returns_ET = [
                distance_returns(d_T, p.gamma, p.normalize_distance, p.scale)
                - penalty * np.array([not turn.valid for turn in episode.turns], dtype=np.float64)
                for d_T, episode in zip(distances_ET, group.episodes, strict=True)
            ]
            labels_N = step_groups([anchor_of(turn, p.anchor) for e in group.episodes for turn in e.turns])
            step_ET = split_turns(group, step_advantages(np.concatenate(returns_ET), labels_N, p.std))
            episode_ET = relative(group, self._fit, p.baseline_over, penalty)
            result.append([p.episode_weight * a + p.omega * s for a, s in zip(episode_ET, step_ET, strict=True)])
            for d_T, episode in zip(distances_ET, group.episodes, strict=True):
                nearer[episode.success] += (np.diff(d_T) < 0).tolist()
        if nearer[False]:
            metrics["graphgpo/progress_in_fail"] = float(np.mean(nearer[False]))
        if nearer[True]:
            metrics["graphgpo/nonprogress_in_success"] = 1.0 - float(np.mean(nearer[True]))
        return result

    def normalise(self, scores_N: np.ndarray) -> np.ndarray:
        """The episode part's normalisation over the turns given."""
        return self._fit(scores_N).apply(scores_N)

    def label(self) -> str:
        """E.g. ``graphgpo(over=trajectory,std,gamma=0.1,omega=1,anchor=state_key)``."""
        p = self.params
        extra = [f"gamma={p.gamma:g}", f"omega={p.omega:g}", f"anchor={p.anchor}"]
        extra += ["change" if p.normalize_distance else "", f"similarity={p.similarity:g}" if p.similarity else ""]
        extra += [f"episode={p.episode_weight:g}" if p.episode_weight != 1 else ""]
        extra += [f"scale={p.scale:g}" if p.scale != 1 and not p.std else ""]
        return label_of(self.name, p.baseline_over, p.std, p.degenerate, [part for part in extra if part])


def group_distances(states_ET: Sequence[Sequence[str]], similarity: float = 0.0) -> list[np.ndarray]:
    """Distance to success of every state of every episode, in the graph of all their transitions.

    Args:
        states_ET: per episode its T+1 states; the last state of a success is :data:`GOAL`.
        similarity: states at least this alike are one node, first come first served, success last (public code).

    Returns:
        float64 [T+1] per episode. A state without a way is one further than the furthest with one; with no success all
        states but success itself are at 1.
    """
    befores = [state for states_T in states_ET for state in states_T[:-1]]
    afters = [state for states_T in states_ET for state in states_T[1:]]
    keys = list(dict.fromkeys([*(k for pair in zip(befores, afters, strict=True) for k in pair if k != GOAL), GOAL]))
    node_of = dict(zip(keys, (str(label) for label in step_groups(keys, similarity)), strict=True))
    goal = node_of[GOAL]
    graph = ReferenceGraph(max_nodes=len(keys) + 1)
    for before, after in zip(befores, afters, strict=True):
        u, v = node_of[before], node_of[after]
        graph.insert([(u, "", GOAL if v == goal else v)])
    known = graph.goal_distances()
    far = max(known.values()) + 1
    return [
        np.array([0.0 if node_of[s] == goal else known.get(node_of[s], far) for s in states_T])
        for states_T in states_ET
    ]


def distance_returns(distance_T1: np.ndarray, gamma: float, change: bool, scale: float) -> np.ndarray:
    """What each step is worth by the distances before and after it: float64 [T]."""
    exponent_T = np.diff(distance_T1) + 1 if change else distance_T1[1:]
    return scale * gamma**exponent_T


def _states(episode: Episode, anchor: Anchor) -> list[str]:
    """The states an episode went through, T+1 of them."""
    states = [anchor_of(turn, anchor) for turn in episode.turns]
    if not episode.turns:
        return states
    last = episode.turns[-1]
    if episode.success:
        return [*states, GOAL]
    by_key = anchor == "state_key" and last.next_state_key is not None
    return [*states, "key\0" + str(last.next_state_key) if by_key else last.next_observation]
