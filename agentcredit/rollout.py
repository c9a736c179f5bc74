"""Plays episodes: a policy against environments, many at once.

The loop is event-driven. Each live episode is waiting either for its environment or for the policy; whatever is ready is
handed on. A lockstep policy is asked only when every live episode is ready, so that its batches are the same each time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from agentcredit.envs.base import EnvClient, EnvEpisode, EnvFailure, StepResult
from agentcredit.episodes import HARNESS_FAILURES, Episode, Group, Layout, StopReason, Task, Turn

log = logging.getLogger(__name__)

PARSE_ERRORS_IN_A_ROW = 5
"""After so many malformed answers in a row the episode ends (our choice: it would only burn its turns)."""


@dataclass(frozen=True)
class Settings:
    """The rules of an episode, whoever plays it."""

    layout: Layout
    max_turns: int
    retries: int = 2


class Speaker(Protocol):
    """What answers a batch of live episodes. One for models (tokens), one for scripted policies (text)."""

    lockstep: bool

    def submit(self, live: Sequence[Live]) -> None:
        """Asks for the next answer of each."""
        ...

    def collect(self) -> list[tuple[Live, Answer]]:
        """The answers that are there, at least one."""
        ...

    def release(self, live: Live) -> None:
        """The episode is over."""
        ...


@dataclass(frozen=True)
class Answer:
    """One answer of a speaker. ``stop`` ends the episode before the answer is played (its context is full)."""

    thought: str
    action: str
    well_formed: bool
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    response_logprobs: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    allowed: tuple[tuple[int, ...] | None, ...] | None = None
    truncated_turns: int = 0
    stop: StopReason | None = None


class Live:
    """An episode being played."""

    def __init__(self, task: Task, sibling: int, attempt: int, env: EnvEpisode) -> None:
        self.task = task
        self.sibling = sibling
        self.attempt = attempt
        self.env = env
        self.session = f"{task.id}#{sibling}#{attempt}"
        self.turns: list[Turn] = []
        self.result: StepResult | None = None  # what the agent sees now
        self.answer: Answer | None = None  # what it just said, until the environment has answered
        self.pending: Future[StepResult] | None = None
        self.malformed = 0
        self.env_seconds = 0.0
        self.began = time.monotonic()
        self.asked = self.began


@dataclass
class Played:
    """Episodes in the order of the tasks asked, and what the playing cost."""

    episodes: list[Episode]
    seconds: float
    policy_seconds: float

    def groups(self) -> list[Group]:
        """The groups without harness failures, in task order; a group of nothing but failures is left out."""
        by_task: dict[str, list[Episode]] = {}
        for episode in self.episodes:
            if not episode.harness_failed:
                by_task.setdefault(episode.task.id, []).append(episode)
        return [Group(episodes[0].task, tuple(episodes)) for episodes in by_task.values()]


def joined(parts: Sequence[Played]) -> Played:
    """What was played one after the other, as one."""
    return Played(
        [episode for part in parts for episode in part.episodes],
        sum(part.seconds for part in parts),
        sum(part.policy_seconds for part in parts),
    )


def play(
    client: EnvClient, speaker: Speaker, wanted: Sequence[tuple[Task, int]], settings: Settings, env_version: str = ""
) -> Played:
    """Plays one episode for each (task, sibling) of ``wanted``, as many at a time as the environment has slots for.

    An episode whose environment fails is played again from the start up to ``settings.retries`` times; after that it is
    returned with a harness failure as its stop reason and whatever turns it had.
    """
    began, policy_seconds = time.monotonic(), 0.0
    finished: dict[tuple[str, int], Episode] = {}
    waiting = deque(wanted)
    live: list[Live] = []
    ready: list[Live] = []
    asked = 0  # episodes that wait for the policy

    def end(episode: Live, reason: StopReason) -> None:
        episode.env.close()
        speaker.release(episode)
        live.remove(episode)
        if reason in HARNESS_FAILURES and episode.attempt < settings.retries:
            live.append(_begin(client, episode.task, episode.sibling, episode.attempt + 1))
        else:
            finished[episode.task.id, episode.sibling] = _close(episode, reason, settings.layout, env_version)

    try:
        while live or waiting:
            # More live episodes than slots would have to be replayed at every step. In lockstep newcomers come in waves:
            # those who begin together are one batch, and one by one they would be as many small ones.
            if not (speaker.lockstep and len(live) > client.capacity // 2):
                while waiting and len(live) < client.capacity:
                    live.append(_begin(client, *waiting.popleft(), 0))
            _wait([episode for episode in live if episode.pending], everything=speaker.lockstep, idle=not asked)
            for episode in [episode for episode in live if episode.pending and episode.pending.done()]:
                reason = _heard(episode, settings)
                if reason is None:
                    ready.append(episode)
                else:
                    end(episode, reason)
            if speaker.lockstep and any(episode.pending for episode in live):
                continue
            if ready:
                speaker.submit(ready)
                asked, ready = asked + len(ready), []
            if not asked:
                continue
            clock = time.monotonic()
            answers = speaker.collect()
            policy_seconds += time.monotonic() - clock
            asked -= len(answers)
            for episode, answer in answers:
                if answer.stop is not None:
                    end(episode, answer.stop)
                    continue
                episode.answer, episode.asked = answer, time.monotonic()
                episode.pending = episode.env.step(answer.action)
    finally:
        for episode in live:
            episode.env.close()
            speaker.release(episode)
    episodes = [finished[task.id, sibling] for task, sibling in wanted]
    return Played(episodes, time.monotonic() - began, policy_seconds)


def _begin(client: EnvClient, task: Task, sibling: int, attempt: int) -> Live:
    episode = Live(task, sibling, attempt, client.open(task.id, task.seed))
    episode.pending = episode.env.reset()
    return episode


def _wait(episodes: Sequence[Live], everything: bool, idle: bool) -> None:
    """Waits for all environments (lockstep), or for one of them when there is nothing else to do."""
    futures = [episode.pending for episode in episodes if episode.pending]
    if everything:
        wait(futures)
    elif idle and futures:
        wait(futures, return_when=FIRST_COMPLETED)


def _heard(episode: Live, settings: Settings) -> StopReason | None:
    """Takes the environment's answer in; returns why the episode is over, or None when it goes on."""
    future, episode.pending = episode.pending, None
    assert future is not None
    episode.env_seconds += time.monotonic() - episode.asked
    try:
        result = future.result()
    except EnvFailure as failure:
        log.warning("task %s, sibling %d: %s", episode.task.id, episode.sibling, failure)
        return StopReason(failure.kind)
    before, answer = episode.result, episode.answer
    episode.result = result
    if before is None or answer is None:
        return None
    valid = answer.well_formed and result.valid
    episode.turns.append(
        Turn(
            prompt_ids=answer.prompt_ids,
            response_ids=answer.response_ids,
            response_logprobs=answer.response_logprobs,
            action=answer.action,
            valid=valid,
            observation=before.observation,
            next_observation=result.observation,
            reward=result.reward,
            thought=answer.thought,
            state_key=before.state_key,
            next_state_key=result.state_key,
            lifted_key=before.lifted_key,
            next_lifted_key=result.lifted_key,
            allowed=answer.allowed,
            truncated_turns=answer.truncated_turns,
        )
    )
    episode.malformed = 0 if answer.well_formed else episode.malformed + 1
    if result.done:
        return StopReason.SUCCESS if result.success else StopReason.FAILURE
    if episode.malformed >= PARSE_ERRORS_IN_A_ROW:
        return StopReason.PARSE_ERRORS
    return StopReason.MAX_TURNS if len(episode.turns) >= settings.max_turns else None


def _close(episode: Live, reason: StopReason, layout: Layout, version: str) -> Episode:
    result = episode.result
    return Episode(
        task=episode.task,
        sibling=episode.sibling,
        layout=layout,
        turns=tuple(episode.turns),
        score=result.score if result else 0.0,
        success=bool(result and result.success),
        stop_reason=reason,
        env_version=version,
        timing={"env": round(episode.env_seconds, 4), "total": round(time.monotonic() - episode.began, 4)},
    )
