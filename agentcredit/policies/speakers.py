"""What answers live episodes: a model, through tokens, or a scripted policy, through text (the rollout's ``Speaker``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcredit.envs.base import StepResult
from agentcredit.episodes import Layout, StopReason
from agentcredit.policies.actions import parse
from agentcredit.policies.base import Policy, Request, TextPolicy
from agentcredit.policies.dialogue import Template
from agentcredit.policies.prompts import Prompts
from agentcredit.rollout import Answer, Live


@dataclass(frozen=True)
class Sampling:
    """How a model's answers are sampled. ``noise`` begins the noise key: (run seed, purpose, step)."""

    layout: Layout
    max_new_tokens: int
    max_context: int
    temperature: float
    restrict_actions: bool
    noise: tuple[str | int, ...]


@dataclass(frozen=True)
class _Prompt:
    """``ids`` is what the turn adds (or the whole prompt), ``context`` what the model sees."""

    ids: list[int]
    context: list[int]
    truncated_turns: int


class TokenSpeaker:
    """A model that answers in tokens.

    Dialogue layout: the context grows by appending. When it would not fit, it is rebuilt without the oldest turns, and
    the turn's ``prompt_ids`` hold the whole new context (``truncated_turns`` > 0 says so): the training row is split there.
    """

    def __init__(self, policy: Policy, template: Template, prompts: Prompts, sampling: Sampling) -> None:
        self.policy = policy
        self.template = template
        self.prompts = prompts
        self.sampling = sampling
        self.lockstep = policy.lockstep
        self._contexts: dict[str, list[int]] = {}  # per session: all tokens so far, the last response included
        self._finished: dict[str, bool] = {}
        self._asked: dict[str, tuple[Live, _Prompt]] = {}
        self._overflowed: list[Live] = []
        if sampling.layout == "dialogue":
            template.check_appends()

    def submit(self, live: Sequence[Live]) -> None:
        """Builds each episode's prompt and asks the policy."""
        requests = []
        for episode in live:
            prompt = self._dialogue(episode) if self.sampling.layout == "dialogue" else self._window(episode)
            if prompt is None:
                self._overflowed.append(episode)
                continue
            self._asked[episode.session] = (episode, prompt)
            requests.append(self._request(episode, prompt))
        if requests:
            self.policy.submit(requests)

    def collect(self) -> list[tuple[Live, Answer]]:
        """Answers of the policy, and the end of the episodes whose context is full."""
        overflow = Answer("", "", False, stop=StopReason.CONTEXT_OVERFLOW)
        answers = [(episode, overflow) for episode in self._overflowed]
        self._overflowed = []
        for response in self.policy.collect() if self._asked else []:
            episode, prompt = self._asked.pop(response.session)
            self._contexts[response.session] = [*prompt.context, *response.ids]
            self._finished[response.session] = response.finished
            said = parse(self.template.decode(response.ids))
            answer = Answer(
                thought=said.thought,
                action=said.action,
                well_formed=said.well_formed and response.finished,
                prompt_ids=tuple(prompt.ids),
                response_ids=response.ids,
                response_logprobs=response.logprobs,
                allowed=response.allowed,
                truncated_turns=prompt.truncated_turns,
            )
            answers.append((episode, answer))
        return answers

    def release(self, live: Live) -> None:
        """Forgets the episode."""
        self.policy.release(live.session)
        self._contexts.pop(live.session, None)
        self._finished.pop(live.session, None)
        self._asked.pop(live.session, None)

    def _request(self, episode: Live, prompt: _Prompt) -> Request:
        sampling, result = self.sampling, episode.result
        assert result is not None
        restrict = sampling.restrict_actions and result.admissible
        return Request(
            session=episode.session,
            context_ids=prompt.context,
            noise_key=(*sampling.noise, episode.task.id, episode.sibling, len(episode.turns)),
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            actions=tuple(result.admissible or ()) if restrict else None,
        )

    def _dialogue(self, episode: Live) -> _Prompt | None:
        assert episode.result is not None
        before = self._contexts.get(episode.session)
        if before is None:
            ids = self._opening(episode.task.goal, episode.result)
            return _Prompt(ids, ids, 0) if self._fits(ids) else None
        ids = self.template.reply(self.prompts.observation(episode.result), self._finished[episode.session])
        context = [*before, *ids]
        return _Prompt(ids, context, 0) if self._fits(context) else self._rebuilt(episode, ids)

    def _rebuilt(self, episode: Live, current: list[int]) -> _Prompt | None:
        """The dialogue from a later turn on: the newest turns that fill at most half of the room that there is."""
        assert episode.result is not None
        goal, turns = episode.task.goal, episode.turns
        room = (self.sampling.max_context - self.sampling.max_new_tokens) // 2
        kept, best = list(current), None
        for first in range(len(turns) - 1, 0, -1):
            turn = turns[first]
            kept = [*turn.response_ids, *kept]
            opening = self._opening(goal, StepResult(turn.observation))
            if len(opening) + len(kept) > room:
                break
            best = _Prompt([*opening, *kept], [*opening, *kept], first)
            if turn.truncated_turns:  # its prompt was rebuilt itself: nothing older can be appended before it
                break
            kept = [*turn.prompt_ids, *kept]
        if best is not None:
            return best
        alone = self._opening(goal, episode.result)
        return _Prompt(alone, alone, len(turns)) if self._fits(alone) else None

    def _opening(self, goal: str, result: StepResult) -> list[int]:
        return self.template.opening(self.prompts.system(), self.prompts.first(goal, result))

    def _window(self, episode: Live) -> _Prompt | None:
        assert episode.result is not None
        past = [(turn.observation, turn.action) for turn in episode.turns]
        shown = min(self.prompts.history, len(past))
        for dropped in range(shown + 1):
            kept = past[len(past) - shown + dropped :]
            text = self.prompts.window(episode.task.goal, kept, episode.result)
            ids = self.template.opening(self.prompts.system(), text)
            if self._fits(ids):
                return _Prompt(ids, ids, dropped)
        return None

    def _fits(self, context: Sequence[int]) -> bool:
        return len(context) + self.sampling.max_new_tokens <= self.sampling.max_context


class TextSpeaker:
    """A scripted policy: answers at once, without tokens."""

    lockstep = False

    def __init__(self, policy: TextPolicy, noise: tuple[str | int, ...] = ()) -> None:
        self.policy = policy
        self.noise = noise
        self._live: list[Live] = []

    def submit(self, live: Sequence[Live]) -> None:
        """Queues the episodes."""
        self._live.extend(live)

    def collect(self) -> list[tuple[Live, Answer]]:
        """Answers all that are queued."""
        live, self._live = self._live, []
        return [(episode, self._answer(episode)) for episode in live]

    def release(self, live: Live) -> None:
        """Nothing is kept."""

    def _answer(self, episode: Live) -> Answer:
        assert episode.result is not None
        key = (*self.noise, episode.task.id, episode.sibling, len(episode.turns))
        thought, action = self.policy.act(episode.task.id, len(episode.turns), episode.result, key)
        return Answer(thought, action, True)
