"""ProAS: mask the reward of steps that made no progress, and move the blame to those that led away (docs/methods/proas.md).

Progress is measured on a reference graph of known ways to the goal (``graph_sources``, ``distilled``, ``imperfect``,
``reference_graph``, ``progress``).
On top of any group estimator:

    MUI   A_t > 0:                      A'_t = A_t · m_t      m_t = 1 for progress, else a floor
    APR   A_t < 0 in a failed episode:  A'_t = A_t · w_t      w_t ∝ κ + deviation_t, in [0, w_max], Σ n_t A_t conserved

No text or code of the paper was at hand: its announcement names the graph and the two mechanisms, the formulas are ours.
With a graph that knows nothing (no success yet), or steps whose state is unknown, the estimator's advantages stay as they are.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field, model_validator

from agentcredit.episodes import Episode, Group
from agentcredit.errors import UsageError
from agentcredit.methods.base import Advantages, Kind, Paper, Params, Tools
from agentcredit.methods.distilled import DistilledSource
from agentcredit.methods.graph_sources import (
    LEVELS,
    ExpertSource,
    GraphSource,
    GraphStore,
    Level,
    SelfSource,
    episode_states,
)
from agentcredit.methods.imperfect import Corruption, ImperfectSource
from agentcredit.methods.proas_metrics import Tally
from agentcredit.methods.progress import Cost, Deviation, ProgressMode, Verdict, measure
from agentcredit.methods.projection import project_to_box
from agentcredit.methods.reference_graph import ReferenceGraph


class ProasParams(Params):
    """Parameters of ProAS. All defaults are our choice; the paper's are not known."""

    graph: Literal["instance", "lifted", "both"] = Field(
        default="both",
        description="Graph of the task itself, of its type (by roles), or both: a step is progress if either says so.",
    )
    source: Literal["self", "oracle", "demo", "distilled"] = Field(
        default="self",
        description="Who shows the way: own successes, each task's expert, an expert on a few tasks, or a written graph.",
    )
    distilled: str = Field(
        default="",
        description="With source=distilled: JSON file of graphs by task type (`methods distill` writes one).",
    )
    corrupt_edges: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Spoil the graph: probability that an edge goes missing.",
        validation_alias=AliasChoices("corrupt_edges", "p_e"),
    )
    corrupt_nodes: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Spoil the graph: probability that a node goes missing.",
        validation_alias=AliasChoices("corrupt_nodes", "p_n"),
    )
    corrupt_spurious: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Spoil the graph: false edges added for each true one.",
        validation_alias=AliasChoices("corrupt_spurious", "p_s"),
    )
    corrupt_goal: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Spoil the graph: probability that an edge to the goal starts elsewhere.",
        validation_alias=AliasChoices("corrupt_goal", "p_g"),
    )
    corruption_seed: int = Field(
        default=0, ge=0, description="Which edges and nodes are spoilt: another draw per seed."
    )
    demos: int = Field(default=10, ge=1, description="With source=demo: demonstrated tasks per task type.")
    edge_scope: Literal["success", "all"] = Field(
        default="success", description="With source=self: learn transitions of successes only, or of failures too."
    )
    update_order: Literal["before", "after"] = Field(
        default="before", description="With source=self: a step's successes guide the same step, or only later ones."
    )
    progress: ProgressMode = Field(
        default="record",
        validation_alias=AliasChoices("progress", "progress_mode"),
        description="Progress is a new smallest distance (record), any gain (edge), or a gain outside loops (loop_erased).",
    )
    slack: bool = Field(
        default=False, description="A step to a new state at equal distance is progress too (detours of equal length)."
    )
    cost: Cost = Field(
        default="shortest",
        description="Distance: fewest steps, or the expected number under the best action (stochastic environments).",
    )
    d_max: int = Field(
        default=0,
        ge=0,
        validation_alias=AliasChoices("d_max", "D_max"),
        description="Largest distance in steps; 0: the environment's turn budget.",
    )
    mui: bool = Field(default=True, description="Mask positive advantages of steps without progress.")
    eta_novel: float = Field(
        default=0.5,
        ge=0,
        le=1,
        validation_alias=AliasChoices("eta_novel", "η_novel"),
        description="What stays of a positive advantage on a step without progress to a state new in the episode.",
    )
    eta_floor: float = Field(
        default=0.0,
        ge=0,
        le=1,
        validation_alias=AliasChoices("eta_floor", "η_floor"),
        description="What stays of a positive advantage on any other step without progress.",
    )
    renorm_positive: bool = Field(
        default=False,
        description="Scale what is left so that an episode keeps its positive mass (at most w_max times).",
    )
    apr: bool = Field(default=True, description="Redistribute negative advantages of failed episodes.")
    deviation: Deviation = Field(
        default="regret",
        validation_alias=AliasChoices("deviation", "dev"),
        description="What blame follows: regret of the step, way remaining, excess of the actual rest, or softmax of regret.",
    )
    temperature: float = Field(
        default=0.5,
        gt=0,
        validation_alias=AliasChoices("temperature", "T_c"),
        description="With deviation=temp: temperature of the softmax.",
    )
    kappa: float = Field(
        default=0.0,
        ge=0,
        validation_alias=AliasChoices("kappa", "κ"),
        description="Blame that every step shares: 0 frees steps on a shortest way, a large value gives the base back.",
    )
    w_max: float = Field(default=4.0, ge=1, description="Largest weight of a step's penalty.")
    budget: Literal["token", "turn"] = Field(
        default="token", description="Conserve the penalty summed over tokens (fits a token-mean loss) or over turns."
    )
    max_nodes: int = Field(default=20_000, ge=2, description="States a graph remembers, least recently seen go first.")
    max_graphs: int = Field(default=4096, ge=1, description="Graphs remembered, least recently extended go first.")
    min_count: float = Field(default=1.0, gt=0, description="Transitions seen less often than this are not used.")
    decay: float = Field(default=1.0, gt=0, le=1, description="With source=self: factor on all counts at every step.")

    @model_validator(mode="after")
    def _decay_can_remember(self) -> ProasParams:
        if self.decay < 1 and self.min_count >= 1:
            raise ValueError(
                f"decay {self.decay:g} with min_count {self.min_count:g} forgets every transition at once; "
                "set min_count below 1, e.g. 0.5"
            )
        return self

    @model_validator(mode="after")
    def _a_written_graph_is_named(self) -> ProasParams:
        if (self.source == "distilled") != bool(self.distilled):
            raise ValueError(
                "source=distilled and the file of graphs (distilled=FILE) belong together: give both or none"
            )
        if self.source == "distilled" and self.graph == "instance":
            raise ValueError("a written graph is one of task types: set graph=lifted or both with source=distilled")
        return self

    @property
    def corruption(self) -> Corruption:
        """How the graphs are spoilt; false where they are not."""
        return Corruption(
            self.corrupt_edges, self.corrupt_nodes, self.corrupt_spurious, self.corrupt_goal, self.corruption_seed
        )


class Proas:
    """Progress-aware shaping of advantages; keeps its reference graphs from step to step."""

    name: ClassVar[str] = "proas"
    kind: ClassVar[Kind] = "shaper"
    Params: ClassVar[type[ProasParams]] = ProasParams
    paper: ClassVar[Paper] = Paper(
        "ProAS: A Progress-Aware Advantage Shaping Framework for Multi-Turn Agentic Reinforcement Learning",
        venue="2026; reconstructed from its announcement",
    )
    summary: ClassVar[str] = "Masks reward of steps without progress on a graph of known ways, moves blame to detours."
    neutral: ClassVar[Mapping[str, Any]] = {"mui": False, "apr": False}
    conserves: ClassVar[str] = "blame"

    def __init__(self, params: ProasParams, source: GraphSource | None = None) -> None:
        self.params = params
        clean = source or _make_source(params)
        self._digest = clean.digest if isinstance(clean, DistilledSource) else ""
        self.source = ImperfectSource(clean, params.corruption) if params.corruption else clean
        self.levels: tuple[Level, ...] = LEVELS if params.graph == "both" else (params.graph,)

    def shape(
        self, groups: Sequence[Group], advantages: Advantages, tools: Tools, metrics: dict[str, float]
    ) -> Advantages:
        """Masked and redistributed advantages.

        Raises:
            UsageError: no state of the batch has a key, so the method could do nothing; or no expert where one is needed.
        """
        started = time.perf_counter()
        _require_keys(groups, self.levels)
        self.source.before(groups, tools)
        tally = Tally()
        shaped: Advantages = []
        for group, advantages_ET in zip(groups, advantages, strict=True):
            graphs: dict[Level, ReferenceGraph | None] = {
                level: self.source.graph(group.task, level) for level in self.levels
            }
            tally.task(graphs)
            pairs = zip(group.episodes, advantages_ET, strict=True)
            shaped.append([self._shape_episode(episode, a_T, graphs, tools, tally) for episode, a_T in pairs])
        self.source.after(groups, tools)
        metrics.update(tally.metrics())
        if isinstance(self.source, ImperfectSource) and self.source.changed_share is not None:
            metrics["proas/corrupted_edges_share"] = self.source.changed_share
        metrics["proas/seconds"] = time.perf_counter() - started
        return shaped

    def label(self) -> str:
        """The main choices, and every other one that differs from its default."""
        shown = dict.fromkeys(("graph", "source", "progress", "deviation", "kappa", "eta_novel"))
        values = {name: getattr(self.params, name) for name in shown} | self.params.changed()
        if self.params.distilled:
            values["distilled"] = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(self.params.distilled).stem)}@{self._digest}"
        parts = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
        ]
        return f"proas({','.join(parts)})"

    def state_dict(self) -> dict[str, Any]:
        """The reference graphs."""
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        self.source.load_state_dict(state)

    def _shape_episode(
        self,
        episode: Episode,
        advantages_T: np.ndarray,
        graphs: Mapping[Level, ReferenceGraph | None],
        tools: Tools,
        tally: Tally,
    ) -> np.ndarray:
        p = self.params
        actions = [turn.action for turn in episode.turns]
        views = [
            measure(
                self.source.nodes(episode, level),
                actions,
                graph,
                d_max=float(p.d_max or tools.max_turns),
                mode=p.progress,
                deviation=p.deviation,
                slack=p.slack,
                cost=p.cost,
                # Many states stand at one milestone, where a search would never meet anything new.
                visited=_finest_states(episode) if p.source == "distilled" else None,
            )
            for level, graph in graphs.items()
            if graph is not None and actions
        ]
        if not views:
            return advantages_T.copy()
        view = Verdict.of(views)
        tokens_T = np.array([turn.n_tokens if p.budget == "token" else 1 for turn in episode.turns], dtype=np.float64)
        shaped_T = advantages_T.copy()
        if p.mui:
            shaped_T = mask_unreasonable(shaped_T, tokens_T, view, episode.success, p)
        weights_T = np.ones(len(shaped_T))
        if p.apr and not episode.success:
            weights_T = penalty_weights(advantages_T, tokens_T, view.deviation, p)
            shaped_T = shaped_T * weights_T
        tally.episode(episode, views[0], view, advantages_T, shaped_T, weights_T, tokens_T)
        return shaped_T


def mask_unreasonable(
    advantages_T: np.ndarray, tokens_T: np.ndarray, view: Verdict, success: bool, p: ProasParams
) -> np.ndarray:
    """MUI: positive advantages of steps without progress fall to a floor; unknown steps and the winning one stay."""
    floor_T = np.where(view.novel == 1, max(p.eta_novel, p.eta_floor), p.eta_floor)
    mask_T = np.where(np.isnan(view.useful) | (view.useful == 1), 1.0, floor_T)
    if success:
        mask_T[-1] = 1.0
    positive_T = advantages_T > 0
    masked_T = np.where(positive_T, advantages_T * mask_T, advantages_T)
    if p.renorm_positive:
        left = float(tokens_T[positive_T] @ masked_T[positive_T])
        if left > 0:
            scale = min(p.w_max, float(tokens_T[positive_T] @ advantages_T[positive_T]) / left)
            masked_T = np.where(positive_T, masked_T * scale, masked_T)
    return masked_T


def penalty_weights(
    advantages_T: np.ndarray, tokens_T: np.ndarray, deviation_T: np.ndarray, p: ProasParams
) -> np.ndarray:
    """APR: weights [T] of a failed episode's negative advantages, in [0, w_max]; Σ n_t A_t over them stays the same.

    Steps of unknown deviation keep weight 1 and their own penalty; the others share theirs.
    """
    weights_T = np.ones(len(advantages_T))
    rows = (advantages_T < 0) & ~np.isnan(deviation_T)
    mass = -tokens_T[rows] * advantages_T[rows]
    deviation = deviation_T[rows]
    if p.deviation == "temp" and len(deviation):
        # The softmax is scaled to mean 1, so that kappa means the same share of blame for long and short episodes.
        deviation = np.exp((deviation - deviation.max()) / p.temperature)
        deviation *= len(deviation) / deviation.sum()
    raw = p.kappa + deviation
    if len(raw) and raw.max() > 0:
        raw = raw / raw.max()  # only ratios count, and a tiny kappa alone would overflow the scale below
    total, spent = float(mass.sum()), float(mass @ raw)
    if total > 0 and spent > 0:
        weights_T[rows] = project_to_box(raw * (total / spent), mass, 0.0, p.w_max, total)
    return weights_T


def _make_source(p: ProasParams) -> GraphSource:
    if p.source == "distilled":
        return DistilledSource.read(Path(p.distilled))
    if p.source == "self":
        store = GraphStore(p.max_nodes, p.min_count, p.decay, p.max_graphs)
        return SelfSource(store, p.edge_scope, p.update_order)
    # An expert's way is shown once, so a threshold on counts would hide it.
    store = GraphStore(p.max_nodes, min(p.min_count, 1.0), max_graphs=p.max_graphs)
    return ExpertSource(store, p.demos if p.source == "demo" else None)


def _finest_states(episode: Episode) -> list[str | None]:
    """Each state by its own key, or by its lifted one where that is unknown."""
    pairs = zip(episode_states(episode, "instance"), episode_states(episode, "lifted"), strict=True)
    return [fine if fine is not None else coarse for fine, coarse in pairs]


def _require_keys(groups: Sequence[Group], levels: Sequence[Level]) -> None:
    turns = [turn for group in groups for episode in group.episodes for turn in episode.turns]
    field = {"instance": "state_key", "lifted": "lifted_key"}
    if turns and all(getattr(turn, field[level]) is None for turn in turns for level in levels):
        wanted = " or ".join(field[level] for level in levels)
        raise UsageError(
            f"proas: environment '{groups[0].task.env}' gives no {wanted} for any state, so progress cannot be measured; "
            "choose another value of graph, or another method."
        )
