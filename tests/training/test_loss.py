from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agentcredit.config import LossConfig
from agentcredit.errors import UsageError
from agentcredit.training.loss import (
    Denominators,
    carries_signal,
    check,
    kl_k3,
    policy_terms,
    token_weights,
    weights_of,
)
from agentcredit.training.rows import Row

VECTORS = Path(__file__).parents[1] / "data" / "vectors"


def cases(name, keep):
    found = [case for case in json.loads((VECTORS / f"{name}.json").read_text())["cases"] if keep(case["in"])]
    assert len(found) >= 3, "the vectors have changed their form"
    return [pytest.param(case, id=case["name"]) for case in found]


def mask_only(sampled):
    sampled = np.array(sampled, dtype=bool)
    nothing = np.zeros(len(sampled), dtype=np.float32)
    return Row(np.zeros(len(sampled), dtype=np.int64), sampled, nothing, nothing, nothing)


@pytest.mark.parametrize("case", cases("verl_policy_loss", lambda given: given["loss_name"] == "vanilla"))
def test_policy_loss_and_gradient_agree_with_verl(case):
    given, out = case["in"], case["out"]
    config = LossConfig(
        clip_low=given["clip_low"],
        clip_high=given["clip_high"],
        dual_clip=given["clip_ratio_c"],
        aggregation=given["agg_mode"],
        norm_length=len(given["logp"][0]),
    )
    mask = np.array(given["mask"], dtype=bool)
    weight = torch.tensor(np.stack(weights_of([mask_only(row) for row in mask], config)))
    logprob = torch.tensor(given["logp"], requires_grad=True)
    terms = policy_terms(logprob, torch.tensor(given["old_logp"]), torch.tensor(given["advantage"]), config)
    loss = (weight * terms.loss).sum()
    loss.backward()
    assert loss.item() == pytest.approx(out["loss"], rel=2e-5, abs=2e-6)
    np.testing.assert_allclose(logprob.grad, out["grad_logp"], rtol=2e-5, atol=2e-6)
    held = (terms.high | terms.low).numpy()[mask]
    assert held.mean() == pytest.approx(out["pg_clipfrac"], abs=1e-6)
    assert terms.dual.numpy()[mask].mean() == pytest.approx(out["pg_clipfrac_lower"], abs=1e-6)


@pytest.mark.parametrize("case", cases("verl_agg_loss", lambda given: given["mode"] != "token-sum"))
def test_aggregation_agrees_with_verl(case):
    given = case["in"]
    mask = np.array(given["mask"], dtype=bool)
    config = LossConfig(aggregation=given["mode"], norm_length=given.get("loss_scale_factor", mask.shape[1]))
    rows = [mask_only(row) for row in mask]
    own = Denominators.of(rows)
    totals = Denominators(
        tokens=given.get("batch_num_tokens", own.tokens), rows=given.get("global_batch_size", own.rows), longest=0
    )
    weights = np.stack([token_weights(row.sampled, totals, config) for row in rows])
    # verl multiplies by the number of ranks because its gradients are averaged over ranks; ours are summed.
    value = given.get("dp_size", 1) * (weights * np.array(given["loss"])).sum()
    assert value == pytest.approx(case["out"]["value"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("case", cases("verl_kl", lambda given: given["kind"] in ("k3", "low_var_kl")))
def test_k3_and_its_gradient_agree_with_verl(case):
    logprob = torch.tensor(case["in"]["logp"], requires_grad=True)
    kl = kl_k3(logprob, torch.tensor(case["in"]["ref_logp"]))
    kl.sum().backward()
    np.testing.assert_allclose(kl.detach(), case["out"]["kl"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logprob.grad, case["out"]["grad_logp"], rtol=1e-5, atol=1e-6)


def test_k3s_expected_gradient_is_the_forward_kls():
    reference = torch.tensor([0.2, 0.3, 0.5])
    logits = torch.tensor([0.4, -0.1, 0.3], requires_grad=True)
    policy = logits.softmax(0)
    # the expectation over actions drawn from the policy, whose probabilities carry no graph, as sampled tokens don't
    (policy.detach() * kl_k3(logits.log_softmax(0), reference.log())).sum().backward()
    # d/d logits of KL(reference ‖ softmax(logits)) is softmax(logits) − reference
    np.testing.assert_allclose(logits.grad, (policy.detach() - reference), atol=1e-6)


def test_weights_by_hand():
    rows = [mask_only([0, 1, 1, 1, 0]), mask_only([0, 0]), mask_only([0, 1])]

    def weights(aggregation, norm_length=0):
        values = weights_of(rows, LossConfig(aggregation=aggregation, norm_length=norm_length))
        return [round(float(value), 6) for row in values for value in row if value]

    assert weights("token-mean") == [0.25, 0.25, 0.25, 0.25]
    assert weights("seq-mean-token-mean") == [round(1 / 6, 6)] * 3 + [0.5]
    assert weights("seq-mean-token-sum") == [0.5] * 4
    assert weights("seq-mean-token-sum-norm") == [0.1] * 4  # two rows with tokens, the longest row has 5
    assert weights("seq-mean-token-sum-norm", norm_length=10) == [0.05] * 4


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_parts_are_averaged_apart(aggregation):
    config = LossConfig(aggregation=aggregation)
    episodes = [mask_only([0, 1, 1, 1]), mask_only([0, 1])]
    predictions = [replace(mask_only(mask), part="own", weight=0.5) for mask in ([0, 1, 1], [0, 0, 1])]
    alone, both = weights_of(episodes, config), weights_of([*episodes, *predictions], config)
    for ours, theirs in zip(alone, both, strict=False):
        np.testing.assert_array_equal(ours, theirs)
    third = 0.5 / 3 if aggregation == "token-mean" else 0.5 / 4  # half of a mean over three tokens, or two rows
    np.testing.assert_allclose(both[2], [0, third, third])
    np.testing.assert_allclose(both[3], [0, 0, 0.5 / 3 if aggregation == "token-mean" else 0.5 / 2])


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
)
def test_ranks_that_share_their_counts_weigh_tokens_as_one_does(aggregation):
    config = LossConfig(aggregation=aggregation)
    rows = [mask_only(np.arange(length) % 2) for length in (2, 9, 30, 1, 5)]
    ranks = [rows[:1], rows[1:]]
    totals = Denominators.of(ranks[0]).merged(Denominators.of(ranks[1]))
    spread = [token_weights(row.sampled, totals, config) for rank in ranks for row in rank]
    for ours, whole in zip(spread, weights_of(rows, config), strict=True):
        np.testing.assert_array_equal(ours, whole)


def test_which_bound_holds_a_token():
    config = LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    ratio = torch.tensor([1.4, 1.25, 0.7, 0.7, 1.4, 3.5])
    advantage = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0, -2.0])
    terms = policy_terms(ratio.log(), torch.zeros(6), advantage, config)
    np.testing.assert_allclose(terms.loss, [-1.3, -1.25, 0.8, -0.7, 1.4, 6.0], rtol=1e-5)
    assert terms.high.tolist() == [True, False, False, False, False, False]
    assert terms.low.tolist() == [False, False, True, False, False, False]
    assert terms.dual.tolist() == [False, False, False, False, False, True]


def test_no_dual_clip_at_zero():
    terms = policy_terms(torch.tensor([3.0]), torch.zeros(1), torch.tensor([-1.0]), LossConfig(dual_clip=0))
    assert terms.loss.item() == pytest.approx(np.exp(3.0), rel=1e-6)
    assert not terms.dual.any()


@pytest.mark.parametrize(
    ("config", "named"), [(LossConfig(dual_clip=0.5), "loss.dual_clip is 0.5"), (LossConfig(clip_low=1.5), "clip_low")]
)
def test_values_without_meaning_are_refused(config, named):
    with pytest.raises(UsageError, match=named):
        check(config)


def test_what_carries_signal():
    silent = mask_only([0, 1])
    assert not carries_signal(silent)
    one = np.array([0, 1], dtype=np.float32)
    assert carries_signal(Row(silent.ids, silent.sampled, silent.advantage, one, silent.ce_weight))
    assert carries_signal(Row(silent.ids, silent.sampled, silent.advantage, silent.advantage, one))
