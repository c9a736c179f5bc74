"""RWML: the policy learns a world model by reinforcement, from its own rollouts (docs/methods/rwml.md).

After a sampled turn's context the model is told its action and asked what the environment will answer. Of n predictions
each earns 1 where it is near to what was answered, else 0; the group-normalised reward is the advantage of its tokens:

    r = 1[ 1 − cos(E(ŝ), E(s)) < τ ]        A = (r − mean) / std over the n predictions
    first phase_steps steps: L = λ L_predictions, no policy gradient; then L = L_base alone

which is mid-training before reinforcement of the policy. ``phase_steps=0`` trains both at once: L_base + λ L_predictions.
A reconstruction from a second-hand summary.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field

from agentcredit.episodes import Group
from agentcredit.errors import UsageError
from agentcredit.methods.base import Assignment, Conversation, Kind, Paper, Params, Tools
from agentcredit.methods.outcome import fit_normalised
from agentcredit.methods.teacher import teacher_prompt
from agentcredit.policies.base import Response
from agentcredit.policies.noise import generator
from agentcredit.training.rows import Row, prompt_ends

REMEMBERED = 20_000
"""Easy triples that are remembered, the newest."""


class RwmlParams(Params):
    """Parameters of RWML."""

    lambda_: float = Field(
        default=1.0,
        ge=0,
        validation_alias=AliasChoices("lambda", "λ", "lambda_"),
        description="Weight of the predictions' loss; 0 gives the base.",
    )
    phase_steps: int = Field(
        default=10,
        ge=0,
        description="First steps that train the world model alone, before the base alone (published: mid-training, length not found); 0: both at once throughout.",
    )
    samples: int = Field(
        default=4,
        ge=2,
        validation_alias=AliasChoices("samples", "G", "n"),
        description="Predictions of one answer of the environment, compared with each other.",
    )
    max_triples: int = Field(
        default=2, ge=0, description="Turns of one episode that are predicted at most, drawn at random; 0: all."
    )
    metric: Literal["embed", "rouge"] = Field(
        default="embed",
        description="Distance of a prediction: cosine of sentence embeddings, or 1 − ROUGE-L (both published).",
    )
    tau: float = Field(
        default=0.2,
        gt=0,
        validation_alias=AliasChoices("tau", "τ", "tau_d", "τ_d"),
        description="Distance below which a prediction is right (published value not found); used where calibrate is 0.",
    )
    calibrate: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="Share of predictions that is to be right in the first step that tells any apart: sets tau once (ours); 0: tau as given.",
    )
    easy_keep: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Chance that a triple is asked again although all its predictions were right the last time (published: 0.1 of the too easy ones are kept); 1: no filter.",
    )
    max_tokens: int = Field(default=96, ge=1, description="Tokens of one prediction at most, its reasoning included.")


@dataclass(frozen=True)
class Triple:
    """A turn whose answer is predicted; ``key`` says what was seen, done and answered, whatever the task."""

    group: int
    episode: int
    turn: int
    key: str


class Rwml:
    """Predictions of the environment's answers, rewarded by how near they come."""

    name: ClassVar[str] = "rwml"
    kind: ClassVar[Kind] = "auxiliary"
    Params: ClassVar[type[RwmlParams]] = RwmlParams
    paper: ClassVar[Paper] = Paper("Reinforcement World Model Learning for LLM-based Agents", "2602.05842", "2026")
    summary: ClassVar[str] = (
        "First rewards the policy for foreseeing what the environment answers, then trains the base."
    )
    neutral: ClassVar[Mapping[str, Any]] = {"lambda": 0.0}
    trial: ClassVar[Mapping[str, Any]] = {"phase_steps": 0}

    def __init__(self, params: RwmlParams) -> None:
        self.params = params
        self.tau = None if params.calibrate else params.tau
        self.easy: dict[str, None] = {}

    def extend(self, groups: Sequence[Group], assignment: Assignment, tools: Tools) -> Assignment:
        """Adds one row per prediction, a part of the policy loss of its own; in the phase it takes the base's away.

        Raises:
            UsageError: the run offers no model to predict with, or no encoder to compare with.
        """
        p = self.params
        phase = 1 <= tools.step <= p.phase_steps
        if p.lambda_ == 0 or not groups:
            return assignment
        if p.phase_steps and not phase:
            return replace(assignment, metrics=assignment.metrics | {"rwml/phase": 0.0})
        template, generate = tools.template, tools.generate
        if template is None or generate is None or (p.metric == "embed" and tools.embed is None):
            raise UsageError(
                "rwml lets the policy's own model predict what the environment answers, and compares by a sentence encoder "
                "(metric=embed), which this run does not offer."
            )
        began = time.perf_counter()
        triples, metrics = self._drawn(groups, tools.rng)
        prompts, keys, questions = [], [], []
        for triple in triples:
            episode = groups[triple.group].episodes[triple.episode]
            note = question(episode.turns[triple.turn].action, tools.terse)
            questions.append(template.aside(note))
            for n in range(p.samples):
                prompts.append(teacher_prompt(template, episode, triple.turn, note))
                keys.append(("rwml", episode.task.id, episode.sibling, triple.turn, n))
        answers = generate(prompts, keys, p.max_tokens) if prompts else []
        actual = [groups[t.group].episodes[t.episode].turns[t.turn].next_observation for t in triples]
        distance_MS = self._distances([foreseen(template.decode(a.ids)) for a in answers], actual, tools)
        if self.tau is None and distance_MS.size:
            self.tau = threshold(distance_MS.ravel(), p.calibrate)
        right_MS = distance_MS < (self.tau or 0.0)
        advantage_MS = np.array([fit_normalised(r_S, std=True).apply(r_S) for r_S in right_MS.astype(np.float64)])
        self._remember(triples, right_MS)
        rows = self._rows(groups, triples, questions, answers, advantage_MS, template)
        metrics |= _metrics(distance_MS, right_MS, answers)
        metrics |= {"rwml/phase": float(phase), "rwml/seconds": time.perf_counter() - began}
        if self.tau is not None:
            metrics["rwml/tau"] = self.tau
        credits = assignment.credits
        if phase:
            silent = [[tuple(np.zeros(len(a_N)) for a_N in c.advantage_TN) for c in own] for own in credits]
            credits = [
                [replace(credit, advantage_TN=a_TN) for credit, a_TN in zip(own, a_ETN, strict=True)]
                for own, a_ETN in zip(credits, silent, strict=True)
            ]
        return Assignment(credits, [*assignment.extra_rows, *rows], assignment.metrics | metrics)

    def label(self) -> str:
        """E.g. ``rwml(lambda=1,phase=10,n=4,embed)``; every other parameter that is not the default."""
        p = self.params
        changed = p.changed()
        for shown in ("lambda_", "phase_steps", "samples", "metric"):
            changed.pop(shown, None)
        extra = [f"{name}={value:g}" for name, value in changed.items()]
        shown = [f"lambda={p.lambda_:g}", f"phase={p.phase_steps}", f"n={p.samples}", p.metric]
        return f"rwml({','.join([*shown, *extra])})"

    def state_dict(self) -> dict[str, Any]:
        """The calibrated τ and the triples that were easy, oldest first."""
        return {"tau": self.tau, "easy": list(self.easy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state_dict` gave."""
        self.tau = state["tau"]
        self.easy = dict.fromkeys(state["easy"])

    def _drawn(self, groups: Sequence[Group], rng: np.random.Generator) -> tuple[list[Triple], dict[str, float]]:
        """The triples to ask about: easy ones left out but for a few, then at most ``max_triples`` of each episode.

        An episode's draw depends on the batch's number from ``rng`` and on what episode it is, not on its place in the batch.
        """
        p = self.params
        number = int(rng.integers(2**62))
        kept: list[Triple] = []
        n_all = n_easy = 0
        for g, group in enumerate(groups):
            for e, episode in enumerate(group.episodes):
                draws = generator(("rwml", number, episode.task.id, episode.sibling))
                chance_T = draws.random(len(episode.turns))
                own: list[Triple] = []
                for t, turn in enumerate(episode.turns):
                    if not turn.next_observation.strip():
                        continue
                    key = _key(turn.observation, turn.action, turn.next_observation)
                    n_all, n_easy = n_all + 1, n_easy + (key in self.easy)
                    if key not in self.easy or chance_T[t] < p.easy_keep:
                        own.append(Triple(g, e, t, key))
                if p.max_triples and len(own) > p.max_triples:
                    own = [own[i] for i in sorted(draws.choice(len(own), p.max_triples, replace=False).tolist())]
                kept += own
        return kept, {"rwml/triples": float(len(kept)), "rwml/easy_share": n_easy / max(1, n_all)}

    def _distances(self, said: Sequence[str], actual: Sequence[str], tools: Tools) -> np.ndarray:
        """Distance of every prediction from what was answered, float64 [M, S]; an empty prediction is as far as can be."""
        n = self.params.samples
        pairs = [(text, actual[k // n]) for k, text in enumerate(said)]
        if self.params.metric == "rouge":
            distances = np.array([1.0 - rouge_l(text, truth) for text, truth in pairs])
        else:
            assert tools.embed is not None
            texts = list(dict.fromkeys(text for pair in pairs for text in pair))
            place = {text: k for k, text in enumerate(texts)}
            vectors = np.asarray(tools.embed(texts), dtype=np.float64) if texts else np.zeros((0, 1))
            ours, theirs = (vectors[[place[pair[side]] for pair in pairs]] for side in (0, 1))
            distances = 1.0 - (ours * theirs).sum(axis=1)
        empty = np.array([not text for text in said], dtype=bool)
        return np.where(empty, 1.0, distances).reshape(len(actual), n)

    def _remember(self, triples: Sequence[Triple], right_MS: np.ndarray) -> None:
        """A triple is easy while all its predictions were right when it was last asked about, wherever it occurred."""
        last: dict[str, bool] = {}
        for triple, right_S in zip(triples, right_MS, strict=True):
            last[triple.key] = last.get(triple.key, True) and bool(right_S.all())
        for key, easy in sorted(last.items()):
            self.easy.pop(key, None)
            if easy:
                self.easy[key] = None
        for key in list(self.easy)[: max(0, len(self.easy) - REMEMBERED)]:
            del self.easy[key]

    def _rows(
        self,
        groups: Sequence[Group],
        triples: Sequence[Triple],
        questions: Sequence[Sequence[int]],
        answers: Sequence[Response],
        advantage_MS: np.ndarray,
        template: Conversation,
    ) -> list[Row]:
        """Question and prediction after the context that the action was chosen in; only the prediction is trained."""
        ends = prompt_ends(groups)
        rows: list[Row] = []
        for k, answer in enumerate(answers):
            m, s = divmod(k, self.params.samples)
            triple, asked = triples[m], questions[m]
            row, length = ends[triple.group][triple.episode][triple.turn]
            sampled = np.arange(len(asked) + len(answer.ids)) >= len(asked)
            silent = np.zeros(len(asked), dtype=np.float32)
            rows.append(
                Row(
                    ids=np.array([*asked, *answer.ids], dtype=np.int64),
                    sampled=sampled,
                    rollout_logprobs=np.concatenate([silent, answer.logprobs]).astype(np.float32),
                    advantage=np.where(sampled, advantage_MS[m, s], 0.0).astype(np.float32),
                    ce_weight=np.zeros(len(sampled), dtype=np.float32),
                    prefix=(row, length - len(template.answer_mark)),
                    part=self.name,
                    weight=self.params.lambda_,
                )
            )
        return rows


def question(action: str, terse: bool) -> str:
    """What the model is asked: it does not see its own thought again, only the action."""
    if terse:
        return f"after {action}"
    return (
        f"Do not act now. Suppose that your action is: {action}\nWrite down what the environment will answer, word for "
        "word as you expect it. You may reason first, between <think> and </think>; write nothing else after that."
    )


def foreseen(text: str) -> str:
    """The prediction in a response: what follows the reasoning, in one line; nothing while the reasoning is not closed."""
    head, closed, tail = text.rpartition("</think>")
    if not closed and "<think>" in text:
        return ""
    return " ".join((tail if closed else head + tail).split())


def rouge_l(said: str, actual: str) -> float:
    """ROUGE-L (Lin 2004), its F1: the longest common subsequence of words, in lower case and without punctuation."""
    a, b = (re.findall(r"\w+", text.lower()) for text in (said, actual))
    if not a or not b:
        return 0.0
    longest = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for k, other in enumerate(b, start=1):
            here = longest[k]
            longest[k] = before + 1 if word == other else max(longest[k], longest[k - 1])
            before = here
    return 2 * longest[-1] / (len(a) + len(b))


def threshold(distances: np.ndarray, share: float) -> float | None:
    """τ halfway between two neighbouring distances, with nearly this share below it; None where all are alike."""
    ordered, counts = np.unique(distances, return_counts=True)
    if len(ordered) < 2:
        return None
    below = np.cumsum(counts)[:-1] / len(distances)
    k = int(np.argmin(np.abs(below - share)))
    return float((ordered[k] + ordered[k + 1]) / 2)


def _key(observation: str, action: str, answer: str) -> str:
    return hashlib.sha256(json.dumps([observation, action, answer]).encode()).hexdigest()[:16]


def _metrics(distance_MS: np.ndarray, right_MS: np.ndarray, answers: Sequence[Response]) -> dict[str, float]:
    if not distance_MS.size:
        return {}
    share_M = right_MS.mean(axis=1)
    return {
        "rwml/distance": float(distance_MS.mean()),
        "rwml/reward": float(share_M.mean()),
        "rwml/contrast_share": float(np.mean((share_M > 0) & (share_M < 1))),
        "rwml/all_right_share": float(np.mean(share_M == 1)),
        "rwml/unfinished_share": sum(not answer.finished for answer in answers) / len(answers),
        "rwml/tokens": float(sum(len(answer.ids) for answer in answers)),
    }
