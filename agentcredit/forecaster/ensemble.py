"""Acting by an explicit temporal ensemble: of several candidate actions, the one that forecasts of several horizons agree on.

At turn t the policy draws candidates; a candidate a has the score

    Σ_k α_k log p(a as the action at lag k | f(h_{t−k}), a_{t−k} … a_{t−1})        k = 0 … min(K, t)

of a forecaster, with the actions in between as they were executed and α_k = exp(−m k) (m = 0: all alike). As in ACT's temporal
ensembling. A candidate's noise is a function of its turn and number alone, so that an evaluation can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from agentcredit.methods.forecasts import Writer
from agentcredit.policies.actions import parse
from agentcredit.policies.base import Request, Response
from agentcredit.policies.dialogue import Template
from agentcredit.training.rows import Row

if TYPE_CHECKING:
    from agentcredit.policies.transformers import TransformersPolicy
    from agentcredit.training.learner import Learner

DRAWN_TOGETHER = 128
"""Candidates that are drawn in one batch (their contexts each have a cache of their own)."""


@dataclass(frozen=True)
class Ensemble:
    """How candidates are ranked."""

    candidates: int = 8
    horizon: int = 2
    decay: float = 0.0

    def label(self) -> str:
        """E.g. ``rerank(forecaster,n=8,K=2)``; the decay where there is one."""
        decay = f",m={self.decay:g}" if self.decay else ""
        return f"rerank(forecaster,n={self.candidates},K={self.horizon}{decay})"


@dataclass
class _Past:
    """Contexts of a session's turns and the actions that were executed in them, the newest last."""

    contexts: list[list[int]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)


class RerankingPolicy:
    """A policy whose answers are the best of several, by a forecaster (the seam ``policies.base.Policy``).

    Args:
        policy: draws the candidates; candidate 0 has the noise of the plain policy.
        learner: of the forecaster's model, at temperature 1; only its ``logprobs`` are asked for.
        template: of the policy.
        writer: asks for forecasts, with the forecaster's horizon.
        ensemble: candidates, horizon and decay.

    ``turns`` were answered, at ``contested`` of them the candidates differed, and at ``changed`` the action is not candidate 0's.
    """

    name = "transformers"
    lockstep = True

    def __init__(
        self, policy: TransformersPolicy, learner: Learner, template: Template, writer: Writer, ensemble: Ensemble
    ) -> None:
        self.policy = policy
        self.learner = learner
        self.template = template
        self.writer = writer
        self.ensemble = ensemble
        self._queue: list[Request] = []
        self._past: dict[str, _Past] = {}
        self.turns = self.contested = self.changed = 0

    def submit(self, requests: Sequence[Request]) -> None:
        """Queues requests."""
        self._queue.extend(requests)

    def collect(self) -> list[Response]:
        """Draws candidates for all queued requests and returns the best of each, in the order of submission."""
        requests, self._queue = self._queue, []
        n = self.ensemble.candidates
        asked = [self._candidate(request, number) for request in requests for number in range(n)]
        drawn: list[Response] = []
        for start in range(0, len(asked), DRAWN_TOGETHER):
            drawn += self.policy.answer(asked[start : start + DRAWN_TOGETHER])
        choices = [_Choice(self.template, drawn[at * n : (at + 1) * n]) for at in range(len(requests))]
        contested = [at for at, choice in enumerate(choices) if len(choice.actions) > 1]
        asking = []
        for at in contested:
            past = self._past.get(requests[at].session, _Past())
            asking.append(([*past.contexts, list(requests[at].context_ids)], past.actions, choices[at].actions))
        best = dict(zip(contested, (int(np.argmax(totals)) for totals in self.scores(asking)), strict=True))
        answers = []
        for at, (request, choice) in enumerate(zip(requests, choices, strict=True)):
            place = best.get(at, 0)
            past = self._past.setdefault(request.session, _Past())
            past.contexts.append(list(request.context_ids))
            past.actions.append(choice.actions[place])
            answers.append(replace(choice.answers[place], session=request.session))
            self.turns += 1
            self.contested += at in best
            self.changed += choice.actions[place] != choice.plain
        return answers

    def release(self, session: str) -> None:
        """Forgets the session."""
        self._past.pop(session, None)

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float = 1.0) -> list[np.ndarray]:
        """Log-probabilities under the policy itself."""
        return self.policy.score(pairs, temperature)

    def scores(self, questions: Sequence[tuple[list[list[int]], list[str], list[str]]]) -> list[np.ndarray]:
        """Scores of candidate actions, per question float64 [n].

        Args:
            questions: contexts of the session's turns, the current one last; the actions executed in all but that;
                candidate actions for it.
        """
        rows: list[Row] = []
        places: list[tuple[int, int, int, int]] = []
        for number, (contexts, executed, actions) in enumerate(questions):
            homes: list[tuple[int, list[int]]] = []
            for lag in range(min(self.ensemble.horizon, len(executed)) + 1):
                # The current context comes first; in a dialogue the earlier ones are its beginnings, and cost nothing more.
                root = contexts[len(contexts) - 1 - lag]
                home = next((index for index, ids in homes if ids[: len(root)] == root), None)
                if home is None:
                    home = len(rows)
                    homes.append((home, root))
                    rows.append(_row(root, 0))
                shared = len(root) - len(self.template.answer_mark)
                asked = self.writer.question(root)[shared:]
                for place, action in enumerate(executed[len(executed) - lag :], 1):
                    asked += self.writer.line(place, action)
                for candidate, action in enumerate(actions):
                    said = self.writer.line(lag + 1, action)
                    places.append((len(rows), number, candidate, lag))
                    rows.append(_row([*asked, *said], len(said), (home, shared)))
        found = self.learner.logprobs(rows) if rows else []
        totals = [np.zeros(len(actions)) for _, _, actions in questions]
        for index, number, candidate, lag in places:
            weight = np.exp(-self.ensemble.decay * lag)
            totals[number][candidate] += weight * float(found[index].astype(np.float64).sum())
        return totals

    def _candidate(self, request: Request, number: int) -> Request:
        key = request.noise_key if number == 0 else (*request.noise_key, "candidate", number)
        return replace(request, session=f"{request.session}~{number}", noise_key=key)


class _Choice:
    """The different actions among a turn's candidates, and the first answer that gives each.

    A malformed answer is a choice only where there is no other.
    """

    def __init__(self, template: Template, drawn: Sequence[Response]) -> None:
        read = [parse(template.decode(response.ids)) for response in drawn]
        formed = [k for k, said in enumerate(read) if said.well_formed and drawn[k].finished] or [0]
        first: dict[str, Response] = {}
        for k in formed:
            first.setdefault(read[k].action, drawn[k])
        self.actions = list(first)
        self.answers = list(first.values())
        self.plain = read[0].action


def _row(ids: Sequence[int], scored: int, prefix: tuple[int, int] | None = None) -> Row:
    """A row whose last ``scored`` tokens are asked about."""
    nothing = np.zeros(len(ids), dtype=np.float32)
    sampled = np.arange(len(ids)) >= len(ids) - scored
    return Row(np.array(ids, dtype=np.int64), sampled, nothing, nothing, nothing, prefix=prefix)
