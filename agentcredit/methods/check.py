"""What every method has to keep, tried on random episodes: ``agentcredit methods check``, for a user's own method too.

Each invariant takes a way to make the method and raises :class:`Broken` with what it saw. A method declares what only some
keep: ``neutral``, parameters that give the base back, and ``conserves``, what it only moves. ``trial`` names parameters
to be tried with, where the defaults leave out what is worth trying.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agentcredit.episodes import Episode, Group
from agentcredit.methods.base import Assignment, Method
from agentcredit.methods.compose import Composition
from agentcredit.methods.grpo import Grpo, GrpoParams
from agentcredit.methods.rehearsal import random_groups, rehearsal_tools

SEEDS = 5


class Broken(Exception):
    """An invariant does not hold; the message says where."""


@dataclass(frozen=True)
class Verdict:
    """One invariant of one method. ``detail`` says what was seen when it broke, or why it does not apply."""

    invariant: str
    passed: bool
    applies: bool
    detail: str = ""


@dataclass(frozen=True)
class Subject:
    """The method under trial."""

    cls: type[Method]

    def made(self, **params: Any) -> Composition:
        """The method with these parameters, on grpo where it is none itself; the penalty of invalid actions is off."""
        factory: Any = self.cls
        part = factory(self.cls.Params.model_validate({**getattr(self.cls, "trial", {}), **params}))
        if self.cls.kind == "estimator":
            return Composition(part, invalid_mode="off")
        base: Any = Grpo(GrpoParams())
        parts: dict[str, Any] = {_PLACES[self.cls.kind]: (part,)}
        return Composition(base, invalid_mode="off", **parts)

    @property
    def neutral(self) -> Mapping[str, Any]:
        """Parameters with which the method is its base."""
        return getattr(self.cls, "neutral", {})

    @property
    def conserves(self) -> str:
        """``episode``: the sum of an episode's advantages over its tokens; ``blame``: that of a failed one's negative ones."""
        return getattr(self.cls, "conserves", "")


_PLACES = {"shaper": "shapers", "refiner": "refiners", "auxiliary": "auxiliaries"}


def check(cls: type[Method]) -> list[Verdict]:
    """All invariants of a method, in order."""
    subject = Subject(cls)
    verdicts = []
    for name, invariant in INVARIANTS.items():
        try:
            reason = invariant(subject)
        except Broken as broken:
            verdicts.append(Verdict(name, False, True, str(broken)))
        except Exception as error:  # whatever a user's method raises is an answer here
            verdicts.append(Verdict(name, False, True, f"{type(error).__name__}: {error}"))
        else:
            verdicts.append(Verdict(name, True, reason is None, reason or ""))
    return verdicts


def one_finite_number_a_token(subject: Subject) -> str | None:
    """Every sampled token gets a finite number in every stream, every metric is one too."""
    for seed in range(SEEDS):
        groups = _batch(seed)
        assignment = subject.made().credit(groups, rehearsal_tools())
        for group, credits in zip(groups, assignment.credits, strict=True):
            for episode, credit in zip(group.episodes, credits, strict=True):
                if [len(a_N) for a_N in credit.advantage_TN] != [turn.n_tokens for turn in episode.turns]:
                    raise Broken(f"batch {seed}: not one advantage for each token")
                for stream in (credit.advantage_TN, credit.ce_response_TN or (), credit.ce_prompt_TN or ()):
                    if not all(np.all(np.isfinite(values)) for values in stream):
                        raise Broken(f"batch {seed}: a number that is not finite")
        wrong = [name for name, value in assignment.metrics.items() if not np.isfinite(value)]
        if wrong:
            raise Broken(f"batch {seed}: metrics {', '.join(wrong)} are not finite")
    return None


def degenerate_groups(subject: Subject) -> str | None:
    """No batch, a lone rollout, an episode without turns: finite numbers; siblings that failed alike: nothing to learn."""
    if subject.made().credit([], rehearsal_tools()).credits:
        raise Broken("credits for an empty batch")
    for seed in range(SEEDS):
        for group in _batch(seed):
            lone = replace(group, episodes=group.episodes[:1])
            alike = replace(group, episodes=tuple(_lost(episode) for episode in group.episodes))
            empty = replace(group.episodes[0], turns=())
            for a_N in _flat(subject.made().credit([alike], rehearsal_tools())):
                if np.any(a_N != 0):
                    raise Broken(f"batch {seed}: all siblings failed alike, and an advantage of {a_N[a_N != 0][0]:g}")
            mixed = replace(group, episodes=(*group.episodes, empty))
            for what, odd in (("an episode without turns", mixed), ("a lone rollout", lone)):
                if not all(np.all(np.isfinite(a_N)) for a_N in _flat(subject.made().credit([odd], rehearsal_tools()))):
                    raise Broken(f"batch {seed}: {what}, and a number that is not finite")
    return None


def order_of_groups_and_siblings(subject: Subject) -> str | None:
    """Groups, and siblings within them, in another order get the same numbers."""
    for seed in range(SEEDS):
        groups = _batch(seed)
        plain = subject.made().credit(groups, rehearsal_tools())
        order = np.random.default_rng(seed).permutation(len(groups)).tolist()
        permuted = subject.made().credit([groups[i] for i in order], rehearsal_tools())
        _same([permuted.credits[order.index(i)] for i in range(len(groups))], plain.credits, "groups in another order")
        turned = [replace(group, episodes=group.episodes[::-1]) for group in groups]
        back = subject.made().credit(turned, rehearsal_tools())
        _same([credits[::-1] for credits in back.credits], plain.credits, "siblings in another order")
    return None


def names_of_states(subject: Subject) -> str | None:
    """State keys are opaque: other names, one for one, change nothing."""
    names = {f"s{k}": f"place number {7 - k}" for k in range(8)}
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        plain = subject.made().credit(_batch(seed), rehearsal_tools())
        renamed = subject.made().credit(random_groups(rng, n_groups=5, names=names), rehearsal_tools())
        _same(renamed.credits, plain.credits, "states by other names")
    return None


def sign_of_the_base(subject: Subject) -> str | None:
    """A method on a base makes its advantages larger, smaller or 0, and never turns one round."""
    if subject.cls.kind == "estimator":
        return "an estimator has no base"
    for seed in range(SEEDS):
        groups = _batch(seed)
        base = _grpo().credit(groups, rehearsal_tools())
        mine = subject.made().credit(groups, rehearsal_tools())
        for a_N, b_N in zip(_flat(mine), _flat(base), strict=True):
            if np.any(a_N * b_N < 0):
                raise Broken(
                    f"batch {seed}: an advantage of {b_N[a_N * b_N < 0][0]:g} became {a_N[a_N * b_N < 0][0]:g}"
                )
    return None


def reduction_to_the_base(subject: Subject) -> str | None:
    """With its neutral parameters the method is its base, bit for bit."""
    if not subject.neutral:
        return "declares no neutral parameters"
    for seed in range(SEEDS):
        groups = _batch(seed)
        base = _grpo().credit(groups, rehearsal_tools())
        mine = subject.made(**subject.neutral).credit(groups, rehearsal_tools())
        said = ", ".join(f"{key}={value}" for key, value in subject.neutral.items())
        for a_N, b_N in zip(_flat(mine), _flat(base), strict=True):
            if not np.array_equal(a_N, b_N):
                raise Broken(f"batch {seed}: with {said} advantages differ from grpo's")
        if mine.extra_rows or any(c.ce_response_TN or c.ce_prompt_TN for credits in mine.credits for c in credits):
            raise Broken(f"batch {seed}: with {said} there is still a cross-entropy stream")
    return None


def conservation(subject: Subject) -> str | None:
    """What the method declares that it only moves has the same sum in every episode, to 1e-6."""
    if not subject.conserves:
        return "declares nothing that it conserves"
    for seed in range(SEEDS):
        groups = _batch(seed)
        base = _grpo().credit(groups, rehearsal_tools())
        mine = subject.made().credit(groups, rehearsal_tools())
        for group, ours, theirs in zip(groups, mine.credits, base.credits, strict=True):
            for episode, a, b in zip(group.episodes, ours, theirs, strict=True):
                if subject.conserves == "blame" and episode.success:
                    continue
                sums = [
                    sum(
                        float(a_N[a_N < 0].sum() if subject.conserves == "blame" else a_N.sum())
                        for a_N in c.advantage_TN
                    )
                    for c in (a, b)
                ]
                if abs(sums[0] - sums[1]) > 1e-6 * max(1.0, abs(sums[1])):
                    raise Broken(f"batch {seed}: an episode's sum of {sums[1]:g} became {sums[0]:g}")
    return None


def episodes_left_alone(subject: Subject) -> str | None:
    """The same batch twice gives the same numbers, and its arrays are what they were."""
    groups = _batch(0)
    before = [turn.response_logprobs.copy() for turn in _turns(groups)]
    first = subject.made().credit(groups, rehearsal_tools(3))
    again = subject.made().credit(groups, rehearsal_tools(3))
    _same(again.credits, first.credits, "the same batch again")
    if any(
        not np.array_equal(saved, turn.response_logprobs) for saved, turn in zip(before, _turns(groups), strict=True)
    ):
        raise Broken("an episode's log-probabilities were changed")
    return None


def state_through_json(subject: Subject) -> str | None:
    """What a method remembers survives JSON, and the next step goes on from it."""
    whole, resumed = subject.made(), subject.made()
    whole.credit(_batch(0), rehearsal_tools(0))
    state = json.loads(json.dumps(whole.state_dict()))
    if not state:
        return "remembers nothing"
    resumed.load_state_dict(state)
    if resumed.state_dict() != whole.state_dict():
        raise Broken("the state that was loaded is not the one that was saved")
    _same(
        resumed.credit(_batch(1), rehearsal_tools(1)).credits,
        whole.credit(_batch(1), rehearsal_tools(1)).credits,
        "after a resume",
    )
    return None


INVARIANTS: Mapping[str, Callable[[Subject], str | None]] = {
    "one finite number a token": one_finite_number_a_token,
    "degenerate groups": degenerate_groups,
    "order of groups and siblings": order_of_groups_and_siblings,
    "names of states": names_of_states,
    "sign of the base": sign_of_the_base,
    "reduction to the base": reduction_to_the_base,
    "conservation": conservation,
    "episodes left alone": episodes_left_alone,
    "state through JSON": state_through_json,
}


def _grpo() -> Composition:
    """The base that methods are tried on."""
    estimator: Any = Grpo(GrpoParams())
    return Composition(estimator, invalid_mode="off")


def _batch(seed: int) -> list[Group]:
    return random_groups(np.random.default_rng(seed), n_groups=5)


def _turns(groups: Sequence[Group]) -> list[Any]:
    return [turn for group in groups for episode in group.episodes for turn in episode.turns]


def _lost(episode: Episode) -> Episode:
    """The episode as a failure in which every action was valid."""
    turns = tuple(replace(turn, reward=0.0, valid=True) for turn in episode.turns)
    return replace(episode, turns=turns, success=False, score=0.0)


def _flat(assignment: Assignment) -> list[np.ndarray]:
    return [a_N for credits in assignment.credits for credit in credits for a_N in credit.advantage_TN]


def _same(got: Sequence[Any], want: Sequence[Any], what: str) -> None:
    """Equal advantages up to the rounding of sums taken in another order."""
    for mine, theirs in zip(got, want, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            for a_N, b_N in zip(a.advantage_TN, b.advantage_TN, strict=True):
                if not np.allclose(a_N, b_N, rtol=1e-9, atol=1e-12):
                    raise Broken(f"{what}: {b_N.tolist()} became {a_N.tolist()}")
