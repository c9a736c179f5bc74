"""Groups written by hand, from rows of the golden vectors, or at random."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from agentcredit.episodes import Episode, Group, StopReason, Task, Turn
from agentcredit.methods.base import Tools


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


def random_groups(
    rng: np.random.Generator, n_groups: int = 3, max_siblings: int = 5, max_turns: int = 8, n_states: int = 6
) -> list[Group]:
    """Ragged groups of random walks with unequal token counts, invalid turns and some states without a key."""
    groups = []
    for g in range(n_groups):
        of = task(f"t{g}", type=("fetch", "heat")[g % 2])
        episodes = []
        for _ in range(int(rng.integers(1, max_siblings + 1))):
            n = int(rng.integers(1, max_turns + 1))
            states = [f"s{k}" for k in rng.integers(0, n_states, n + 1)]
            success = bool(rng.random() < 0.5)
            turns = []
            for t in range(n):
                known = rng.random() < 0.9
                turns.append(
                    turn(
                        states[t] if known else None,
                        states[t + 1],
                        lifted=(role(states[t]), role(states[t + 1])),
                        tokens=int(rng.integers(1, 6)),
                        reward=float(success and t == n - 1),
                        valid=bool(rng.random() < 0.8),
                        observation=f"you see {states[t]}",
                    )
                )
            episodes.append(episode(turns, success, of=of))
        groups.append(group(*episodes))
    return groups


def role(state: str) -> str:
    """A lifted key: two states share one."""
    return f"role{int(state[1:]) // 2}"


class Words:
    """A chat template of one id per word; every prompt ends with the id ``mark``."""

    end_id = 0

    def __init__(self, mark: int = 1) -> None:
        self.answer_mark = (mark,)
        self.words: list[str] = ["<end>"] + [""] * 99

    def encode(self, text: str) -> list[int]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def decode(self, ids: Iterable[int]) -> str:
        return self.read(ids)

    def aside(self, user: str) -> list[int]:
        return [*self.encode(user), *self.answer_mark]

    def read(self, ids: Iterable[int]) -> str:
        """The words of ids; an id that is no word's as a number."""
        return " ".join(self.words[i] or str(i) for i in ids)
