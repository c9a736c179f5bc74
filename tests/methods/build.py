"""Groups written by hand, from rows of the golden vectors, or at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agentcredit.episodes import Episode, Group, StopReason, Task, Turn
from agentcredit.methods.base import Tools
from agentcredit.methods.rehearsal import Words, random_groups, role

__all__ = ["Words", "episode", "group", "random_groups", "role", "task", "tools", "turn", "walk"]


def task(id: str = "t0", type: str = "fetch") -> Task:
    return Task(env="toy", split="train", id=id, type=type, goal="fetch it", content_hash="0" * 16)


def turn(
    state: str | None = None,
    following: str | None = None,
    *,
    lifted: tuple[str | None, str | None] = (None, None),
    tokens: int = 1,
    reward: float = 0.0,
    valid: bool = True,
    observation: str = "",
    after: str = "",
    action: str | None = None,
) -> Turn:
    return Turn(
        prompt_ids=(1,),
        response_ids=tuple(range(tokens)),
        response_logprobs=np.zeros(tokens, dtype=np.float32),
        action=action if action is not None else f"{state}>{following}",
        valid=valid,
        observation=observation,
        next_observation=after,
        reward=reward,
        state_key=state,
        next_state_key=following,
        lifted_key=lifted[0],
        next_lifted_key=lifted[1],
    )


def episode(turns: Sequence[Turn], success: bool, sibling: int = 0, of: Task | None = None) -> Episode:
    return Episode(
        task=of or task(),
        sibling=sibling,
        layout="dialogue",
        turns=tuple(turns),
        score=float(success),
        success=success,
        stop_reason=StopReason.SUCCESS if success else StopReason.MAX_TURNS,
    )


def walk(
    states: Sequence[str | None],
    success: bool,
    *,
    sibling: int = 0,
    of: Task | None = None,
    tokens: Sequence[int] | None = None,
    lifted: Sequence[str | None] | None = None,
) -> Episode:
    """An episode through ``states``; a success earns 1 on its last step."""
    n = len(states) - 1
    tokens = tokens or [1] * n
    lifted = lifted or [None] * (n + 1)
    turns = [
        turn(
            states[t],
            states[t + 1],
            lifted=(lifted[t], lifted[t + 1]),
            tokens=tokens[t],
            reward=float(success and t == n - 1),
            observation=str(states[t]),
        )
        for t in range(n)
    ]
    return episode(turns, success, sibling, of)


def group(*episodes: Episode) -> Group:
    numbered = tuple(replace(e, sibling=i) for i, e in enumerate(episodes))
    return Group(task=episodes[0].task, episodes=numbered)


def tools(max_turns: int = 30, **kwargs) -> Tools:
    return Tools(step=0, rng=np.random.default_rng(0), max_turns=max_turns, **kwargs)
