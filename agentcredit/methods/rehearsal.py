"""Episodes at random and a model that is none: what a method is tried on without an environment or a GPU.

``agentcredit methods check`` and the tests rehearse methods with it. States are ``s0`` … ``s7``, the words of a response are
counted as its tokens, and the model's opinions are a pure function of what it reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from agentcredit.envs.base import ExpertEpisode, ExpertStep, StepResult
from agentcredit.episodes import Episode, Group, StopReason, Task, Turn
from agentcredit.methods.base import Tools
from agentcredit.policies.base import Response
from agentcredit.training.rows import Row

MARK = 1
"""The id that every prompt ends with."""


def random_groups(
    rng: np.random.Generator,
    n_groups: int = 3,
    max_siblings: int = 5,
    max_turns: int = 8,
    n_states: int = 6,
    names: Mapping[str, str] | None = None,
) -> list[Group]:
    """Ragged groups of random walks with unequal token counts, invalid turns and some states without a key.

    ``names`` gives states other names, by which nothing that a method says may change.
    """
    called = dict(names or {})
    groups = []
    for g in range(n_groups):
        task = Task("rehearsal", "train", f"t{g}", ("fetch", "heat")[g % 2], "fetch it", "0" * 16)
        episodes = []
        for sibling in range(int(rng.integers(1, max_siblings + 1))):
            n = int(rng.integers(1, max_turns + 1))
            states = [f"s{k}" for k in rng.integers(0, n_states, n + 1)]
            success = bool(rng.random() < 0.5)
            turns = []
            for t in range(n):
                known, tokens, valid = rng.random() < 0.9, int(rng.integers(1, 6)), bool(rng.random() < 0.8)
                turns.append(
                    Turn(
                        prompt_ids=(MARK,),
                        response_ids=tuple(range(tokens)),
                        response_logprobs=np.zeros(tokens, dtype=np.float32),
                        action=f"{states[t]}>{states[t + 1]}",
                        valid=valid,
                        observation=f"you see {states[t]}",
                        next_observation=f"you see {states[t + 1]}",
                        reward=float(success and t == n - 1),
                        thought=f"towards {states[t + 1]}",
                        state_key=called.get(states[t], states[t]) if known else None,
                        next_state_key=called.get(states[t + 1], states[t + 1]),
                        lifted_key=role(states[t]),
                        next_lifted_key=role(states[t + 1]),
                    )
                )
            reason = StopReason.SUCCESS if success else StopReason.MAX_TURNS
            episodes.append(Episode(task, sibling, "dialogue", tuple(turns), float(success), success, reason))
        groups.append(Group(task, tuple(episodes)))
    return groups


def role(state: str) -> str:
    """A lifted key: two states share one."""
    return f"role{int(state[1:]) // 2}"


class Words:
    """A chat template of one id per word; every prompt ends with the id ``mark``."""

    end_id = 0

    def __init__(self, mark: int = MARK) -> None:
        self.answer_mark = (mark,)
        self.words: list[str] = ["<end>"] + [""] * 99

    def encode(self, text: str) -> list[int]:
        """One id per word; new words get new ids."""
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def decode(self, ids: Iterable[int]) -> str:
        """The words of ids, the end mark left out."""
        return self.read(i for i in ids if i != self.end_id)

    def aside(self, user: str) -> list[int]:
        """The words, and the mark."""
        return [*self.encode(user), *self.answer_mark]

    def read(self, ids: Iterable[int]) -> str:
        """The words of ids; an id that is no word's as a number."""
        return " ".join(self.words[i] or str(i) for i in ids)


def rehearsal_tools(seed: int = 0, step: int = 0, max_turns: int = 8) -> Tools:
    """Tools of which none is missing; every opinion depends on what was read, and on nothing else."""
    words = Words()

    def likes(row: Row) -> np.ndarray:
        taste = zlib.crc32(words.read(row.ids.tolist()).encode()) % 1000 / 1000
        return np.where(row.sampled, -0.2 - 2 * taste, 0.0).astype(np.float32)

    def generate(
        prompts: Sequence[Sequence[int]],
        keys: Sequence[tuple[str | int, ...]],
        *,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
    ) -> list[Response]:
        said = [tuple(words.encode(f"<think> towards s{key[-1]} </think> <action> go </action>")) for key in keys]
        return [Response("", ids, np.full(len(ids), -1.0, dtype=np.float32), finished=True) for ids in said]

    def embed(texts: Sequence[str]) -> np.ndarray:
        vectors = np.array([[1.0, *np.frombuffer(f"{text:16.16}".encode(), np.uint8) % 7] for text in texts]).reshape(
            -1, 17
        )
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return Tools(
        step=step,
        rng=np.random.default_rng(seed),
        max_turns=max_turns,
        score=lambda pairs: [np.full(len(response), -1.0, dtype=np.float32) for _, response in pairs],
        logprobs=lambda rows: [likes(row) for row in rows],
        generate=generate,
        analyse=lambda prompts: ['[{"step": 1, "wrong": "Too early.", "instead": "look around"}]' for _ in prompts],
        embed=embed,
        expert=_expert,
        template=words,
    )


def _expert(task_id: str) -> ExpertEpisode:
    states = ("s0", "s1", "s2")
    results = [StepResult("", state_key=s, lifted_key=role(s), success=s == "s2") for s in states]
    return ExpertEpisode(task_id, [ExpertStep("", "go"), ExpertStep("", "take")], results)
