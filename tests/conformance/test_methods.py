"""One suite for every method that is registered: what the trainer may rely on whatever the name.

A shaper or auxiliary is run on the default base. A plug-in that is installed is tested along with the built-in methods.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from agentcredit.config import MethodConfig
from agentcredit.episodes import Group
from agentcredit.methods.base import Assignment, Kind, Tools
from agentcredit.methods.registry import build, get, names
from agentcredit.methods.rehearsal import rehearsal_tools
from tests.methods.build import group, random_groups, walk

pytestmark = pytest.mark.parametrize("name", names())


def make(name, **params):
    return build(MethodConfig(name=name, params={**getattr(get(name), "trial", {}), **params}))


def tokens_of(assignment: Assignment) -> list[list[list[list[float]]]]:
    return [[[a.tolist() for a in c.advantage_TN] for c in credits] for credits in assignment.credits]


def values_of(assignment: Assignment) -> dict[str, float]:
    """Metrics without what is measured by the clock."""
    return {key: value for key, value in assignment.metrics.items() if not key.endswith("seconds")}


def offered(seed: int = 0) -> Tools:
    return rehearsal_tools(seed)


def batch(seed: int = 0) -> list[Group]:
    return random_groups(np.random.default_rng(seed), n_groups=5)


def test_it_declares_what_it_is(name):
    cls = get(name)
    assert cls.name == name
    assert cls.kind in get_args(Kind)
    assert cls.paper.title
    assert cls.summary.endswith(".")
    assert "\n" not in cls.summary
    assert cls.__doc__


def test_every_parameter_is_explained_and_has_a_valid_default(name):
    params = get(name).Params
    for field, info in params.model_fields.items():
        assert info.description, f"{name}.{field} has no description"
        assert info.description.endswith("."), f"{name}.{field}: a sentence ends with a period"
        assert not info.is_required(), f"{name}.{field} has no default"
    assert params.model_validate(params().model_dump()) == params()
    assert params().changed() == {}


def test_its_label_is_one_word_and_tells_parameters_apart(name):
    composition = make(name)
    label = next(part.label() for part in composition.parts() if part.name == name)
    assert label.startswith(f"{name}(")
    assert label.endswith(")")
    assert not set(label) & set(" \n/")
    assert composition.label().startswith(composition.estimator.label())


@pytest.mark.parametrize("seed", range(5))
def test_one_finite_number_for_every_sampled_token(name, seed):
    groups = batch(seed)
    assignment = make(name).credit(groups, offered())
    assert len(assignment.credits) == len(groups)
    for g, credits in zip(groups, assignment.credits, strict=True):
        assert len(credits) == len(g.episodes)
        for e, credit in zip(g.episodes, credits, strict=True):
            assert [len(a) for a in credit.advantage_TN] == [t.n_tokens for t in e.turns]
            for stream in (credit.advantage_TN, credit.ce_response_TN or (), credit.ce_prompt_TN or ()):
                assert all(np.all(np.isfinite(values)) for values in stream)
    for row in assignment.extra_rows:
        assert len(row.sampled) == len(row.advantage) == len(row.ce_weight) == len(row.ids)
    assert all(isinstance(v, float) and math.isfinite(v) for v in assignment.metrics.values())


def test_the_same_batch_and_noise_give_the_same_credit(name):
    first = make(name).credit(batch(), offered(3))
    again = make(name).credit(batch(), offered(3))
    assert tokens_of(first) == tokens_of(again)
    assert values_of(first) == values_of(again)


def test_episodes_are_not_changed(name):
    groups = batch()
    before = [[[t.response_logprobs.copy() for t in e.turns] for e in g.episodes] for g in groups]
    make(name).credit(groups, offered())
    for g, saved_E in zip(groups, before, strict=True):
        for e, saved_T in zip(g.episodes, saved_E, strict=True):
            for t, saved in zip(e.turns, saved_T, strict=True):
                np.testing.assert_array_equal(t.response_logprobs, saved)


def test_the_order_of_groups_does_not_matter(name):
    groups = batch()
    order = np.random.default_rng(1).permutation(len(groups))
    plain = make(name).credit(groups, offered())
    permuted = make(name).credit([groups[i] for i in order], offered())
    assert_close(tokens_of(permuted), [tokens_of(plain)[i] for i in order])
    assert values_of(permuted) == pytest.approx(values_of(plain))


def test_the_order_of_siblings_does_not_matter(name):
    groups = batch()
    plain = make(name).credit(groups, offered())
    turned = [Group(g.task, tuple(reversed(g.episodes))) for g in groups]
    permuted = make(name).credit(turned, offered())
    assert_close(tokens_of(permuted), [list(reversed(credits)) for credits in tokens_of(plain)])


def test_its_state_survives_json_and_resumes_the_next_step(name):
    whole, resumed = make(name), make(name)
    whole.credit(batch(0), offered(0))
    state = json.loads(json.dumps(whole.state_dict()))
    resumed.load_state_dict(state)
    assert resumed.state_dict() == whole.state_dict()
    want, got = whole.credit(batch(1), offered(1)), resumed.credit(batch(1), offered(1))
    assert tokens_of(got) == tokens_of(want)
    assert values_of(got) == values_of(want)


def test_no_outcome_contrast_means_no_policy_gradient(name):
    """T1: siblings of one outcome, all actions valid: nothing to learn from, however the episodes differ."""
    all_failed = group(walk(["s0", "s1", "s3"], False), walk(["s0", "s2"], False, tokens=[4]))
    for credit in make(name).credit([all_failed], offered()).credits[0]:
        assert all(np.all(a == 0) for a in credit.advantage_TN)


def test_a_lone_rollout_gets_nothing(name):
    for credit in make(name).credit([group(walk(["s0", "s1"], True))], offered()).credits[0]:
        assert all(np.all(a == 0) for a in credit.advantage_TN)


def test_small_batches(name):
    assert make(name).credit([], offered()).credits == []
    one_turn = group(walk(["s0", "s1"], True), walk(["s0", "s2"], False))
    (won, lost), *_ = tokens_of(make(name).credit([one_turn], offered()))
    assert won[0][0] > 0 > lost[0][0]
    without_turns = group(walk(["s0"], False), walk(["s0", "s1"], True))
    assert make(name).credit([without_turns], offered()).credits[0][0].advantage_TN == ()


def test_unequal_groups(name):
    ragged = [
        group(walk(["s0", "s1"], True)),
        group(walk(["s0", "s1", "s2", "s3"], False), walk(["s0", "s3"], True), walk(["s0", "s0"], False)),
    ]
    sizes = [len(credits) for credits in make(name).credit(ragged, offered()).credits]
    assert sizes == [1, 3]


@pytest.mark.parametrize("mode", ["residual", "before_norm", "off"])
def test_an_invalid_action_never_gains_by_the_penalty(name, mode):
    stays = walk(["s0", "s0"], False)
    worth = []
    for valid in (True, False):
        marked = replace(stays, turns=tuple(replace(turn, valid=valid) for turn in stays.turns))
        groups = [group(walk(["s0", "s1"], True), walk(["s0", "s2"], False), marked)]
        (*_, bad), *_ = tokens_of(build(MethodConfig(name=name, invalid_mode=mode)).credit(groups, offered()))
        worth.append(bad[0][0])
    assert worth[1] == worth[0] if mode == "off" else worth[1] < worth[0]


def assert_close(got, want):
    """Nested lists of one shape, up to the rounding of sums taken in another order."""
    if isinstance(want, list):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w)
    else:
        assert got == pytest.approx(want, rel=1e-9, abs=1e-12)
