"""What ProAS logs about a step (docs/methods/proas.md). Values without any data are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from agentcredit.episodes import Episode
from agentcredit.methods.graph_sources import Level
from agentcredit.methods.progress import Progress, Verdict
from agentcredit.methods.reference_graph import ReferenceGraph


class Tally:
    """Collects flags and values over a batch; a metric is the mean of what was collected under its name."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)
        self._weights: list[float] = []
        self._worst_error = 0.0

    def task(self, graphs: Mapping[Level, ReferenceGraph | None]) -> None:
        """The graphs that one task was measured on."""
        self._add("tasks_with_goal", [any(graph is not None for graph in graphs.values())])
        for level, graph in graphs.items():
            self._add(f"tasks_with_goal_{level}", [graph is not None])
            if graph is not None:
                self._add(f"arg_nodes_{level}", [graph.n_nodes])
                self._add(f"arg_edges_{level}", [len(graph.edges())])

    def episode(
        self,
        episode: Episode,
        finest: Progress,
        verdict: Verdict,
        base_T: np.ndarray,
        shaped_T: np.ndarray,
        weights_T: np.ndarray,
        tokens_T: np.ndarray,
    ) -> None:
        """One shaped episode, with the view of the finest level that had a graph."""
        known_T = ~np.isnan(verdict.useful)
        positive_T, negative_T = base_T > 0, base_T < 0
        without_T = positive_T & (verdict.useful == 0)
        self._add("coverage", [finest.on_map])
        self._add("unknown_share", ~known_T)
        self._add("masked_positive_share", without_T[positive_T])
        self._add("novel_masked_share", verdict.novel[without_T] == 1)
        gained_T = verdict.gained[known_T] > 0
        if episode.success:
            self._add("nonprogress_in_success", ~gained_T)
        else:
            self._add("progress_in_fail", gained_T)
            self._weights.extend(weights_T[negative_T].tolist())
            before = float(tokens_T[negative_T] @ base_T[negative_T])
            after = float(tokens_T[negative_T] @ shaped_T[negative_T])
            if before:
                self._worst_error = max(self._worst_error, abs(after / before - 1.0))
        if not np.isnan(finest.distance[0]):
            self._add("distance_at_start", [finest.distance[0]])

    def metrics(self) -> dict[str, float]:
        """Means, the 95th percentile of APR's weights, and the largest relative error of conservation."""
        result = {f"proas/{name}": float(np.mean(values)) for name, values in self._values.items() if values}
        if self._weights:
            result["proas/apr_weight_p95"] = float(np.quantile(self._weights, 0.95))
            result["proas/conservation_error"] = self._worst_error
        return result

    def _add(self, name: str, values: object) -> None:
        self._values[name].extend(np.asarray(values, dtype=np.float64).tolist())
