"""Cases of the golden vectors (tests/data/vectors) as groups, and results back in the vectors' order of rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentcredit.episodes import Group
from agentcredit.methods.base import Advantages
from tests.methods.build import episode, group, task, turn

FOLDER = Path(__file__).parents[1] / "data" / "vectors"


def cases(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{name}.json").read_text())["cases"]


class Rows:
    """Rows of a batch (one per turn), cut into groups and episodes in their order of first appearance."""

    def __init__(self, uid: Sequence[int], traj: Sequence[int]) -> None:
        self.positions: dict[int, dict[int, list[int]]] = {}
        for row, (u, i) in enumerate(zip(uid, traj, strict=True)):
            self.positions.setdefault(u, {}).setdefault(i, []).append(row)
        self.n = len(uid)

    def groups(
        self,
        reward: Sequence[float],
        invalid: Sequence[int],
        n_tokens: Sequence[int] | None = None,
        observation: Sequence[str] | None = None,
        following: Sequence[str] | None = None,
    ) -> list[Group]:
        """One turn a row. ``following`` is the state after it; ``success`` there makes the episode one."""
        made = []
        for u, episodes in self.positions.items():
            of = task(f"t{u}")
            made.append(
                group(
                    *(
                        episode(
                            [
                                turn(
                                    reward=reward[row],
                                    valid=not invalid[row],
                                    tokens=n_tokens[row] if n_tokens else 1,
                                    observation=observation[row] if observation else "",
                                    after=following[row] if following else "",
                                )
                                for row in rows
                            ],
                            success=following is not None and following[rows[-1]] == "success",
                            of=of,
                        )
                        for rows in episodes.values()
                    )
                )
            )
        return made

    def scatter(self, advantages: Advantages) -> np.ndarray:
        """One value per row, in the batch's order."""
        out = np.full(self.n, np.nan)
        for episodes, values in zip(self.positions.values(), advantages, strict=True):
            for rows, values_T in zip(episodes.values(), values, strict=True):
                out[rows] = values_T
        return out


def outcome_rewards(rows: Rows, row_score: Sequence[float]) -> tuple[list[float], list[int], float]:
    """Rewards whose sum is the trajectory's unpenalised score, the invalid rows, and the penalty that tells them apart."""
    reward, invalid, penalty = [0.0] * rows.n, [0] * rows.n, 0.0
    for episodes in rows.positions.values():
        for places in episodes.values():
            best = max(row_score[row] for row in places)
            reward[places[0]] = best
            for row in places:
                if row_score[row] != best:
                    invalid[row] = 1
                    penalty = round(best - row_score[row], 6)
    return reward, invalid, penalty


def close(got: np.ndarray, want: Sequence[float], case: dict[str, Any], rtol: float, atol: float) -> None:
    np.testing.assert_allclose(got, np.asarray(want), rtol=rtol, atol=case.get("atol", atol))
