from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from agentcredit.config import LossConfig, OptimConfig, TrainConfig
from agentcredit.errors import RunFailed, UsageError
from agentcredit.training import checkpoint
from agentcredit.training.learner import Learner
from agentcredit.training.loss import weights_of
from agentcredit.training.packing import collate, materialise
from agentcredit.training.rows import Row
from agentcredit.training.tally import Tally

LENGTHS = [5, 61, 9, 34, 12, 50, 7, 23]
AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def learner_of(model: Any, loss=None, optim=None, temperature=1.0, **train: Any) -> Learner:
    return Learner(model, loss or LossConfig(), optim or OptimConfig(), TrainConfig(**train), temperature)


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in learner.model.named_parameters()}


def on_policy(rows: list[Row], scores: list[torch.Tensor]) -> list[Row]:
    """The rows as if the scored weights had played them."""
    return [
        dataclasses.replace(row, rollout_logprobs=np.where(row.sampled, score.detach().numpy(), 0).astype(np.float32))
        for row, score in zip(rows, scores, strict=True)
    ]


def assert_close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float = 1e-6) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        scale = max(1.0, float(theirs[name].abs().max()))
        assert float((value - theirs[name]).abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_loss_and_gradient_do_not_depend_on_the_micro_batches(make_model, make_rows, naive_logprobs, aggregation):
    config = LossConfig(aggregation=aggregation, kl=0.05)
    rows = make_rows(LENGTHS)
    reference = [score.detach().numpy() for score in naive_logprobs(make_model(seed=7), rows)]
    losses, seen = [], []
    for size in (1, 2, 8):
        learner = learner_of(make_model(), config)
        weights, tally = weights_of(rows, config), Tally()
        batches = [collate(rows, weights, range(at, at + size)) for at in range(0, len(rows), size)]
        assert len(batches) == 8 // size
        learner.accumulate(batches, 1.0, reference, tally)
        losses.append(tally.metrics(1))
        seen.append(gradients(learner))
    assert {"loss_policy", "loss_ce", "loss_kl"} <= losses[0].keys()
    for metrics, gradient in zip(losses[:2], seen[:2], strict=True):
        assert metrics == pytest.approx(losses[2], rel=1e-6, abs=1e-6)
        assert_close(gradient, seen[2])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_update_does_not_depend_on_the_token_budget(make_model, make_rows, aggregation):
    rows, seen = make_rows(LENGTHS), []
    rows.append(dataclasses.replace(make_rows([6], seed=5)[0], prefix=(3, 20)))
    for budget in (64, 200, 8192):
        learner = learner_of(make_model(), LossConfig(aggregation=aggregation), tokens_per_microbatch=budget)
        n_batches: list[int] = []
        learner.model.get_decoder().register_forward_hook(lambda *_, count=n_batches: count.append(1))
        seen.append((learner.update(rows, step=0), len(n_batches)))
    assert seen[0][1] > seen[1][1] > seen[2][1] == 2  # with a mask, and without
    for metrics, _ in seen[:2]:
        assert metrics == pytest.approx(seen[2][0], rel=1e-5, abs=1e-6)


def test_a_row_with_nothing_to_predict_has_a_gradient_of_zero(make_model, make_rows):
    (row,) = make_rows([9], ce=0.0)
    learner = learner_of(make_model())
    empty = dataclasses.replace(row, sampled=np.zeros(9, dtype=bool))
    learner.accumulate([collate([empty], [np.zeros(9)], [0])], 1.0, None, Tally())
    assert all(p.grad is None or not p.grad.any() for p in learner.model.parameters())


def test_the_loss_is_the_formula(make_model, make_rows, naive_logprobs):
    """All three streams against the formula, written out token by token in float64 from full logits."""
    config = LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=2.0, kl=0.05)
    model, rows = make_model(), make_rows(LENGTHS)
    scores, anchor = naive_logprobs(model, rows), naive_logprobs(make_model(seed=7), rows)
    n_sampled = sum(int(row.sampled.sum()) for row in rows)
    policy = ce = kl = 0.0
    for row, score, other in zip(rows, scores, anchor, strict=True):
        for n in range(len(row)):
            logp = float(score[n].detach())
            ce -= float(row.ce_weight[n]) * logp
            if row.sampled[n]:
                a, ratio = float(row.advantage[n]), np.exp(logp - float(row.rollout_logprobs[n]))
                loss = max(-a * ratio, -a * min(max(ratio, 0.9), 1.3))
                policy += (min(loss, -2.0 * a) if a < 0 else loss) / n_sampled
                u = float(other[n].detach()) - logp
                kl += 0.05 * min(np.exp(u) - u - 1, 10) / n_sampled
    learner, tally = learner_of(model, config), Tally()
    batches = [collate(rows, weights_of(rows, config), range(8))]
    learner.accumulate(batches, 1.0, [score.detach().numpy() for score in anchor], tally)
    metrics = tally.metrics(1)
    assert metrics["loss_policy"] == pytest.approx(policy, rel=1e-4)
    assert metrics["loss_ce"] == pytest.approx(ce, rel=1e-4)
    assert metrics["loss_kl"] == pytest.approx(kl, rel=1e-4)
    assert metrics["loss"] == pytest.approx(policy + ce + kl, rel=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_on_policy_the_gradient_is_reinforces(make_model, make_rows, naive_logprobs, temperature):
    model, twin = make_model(), make_model()
    rows = make_rows(LENGTHS, ce=0.0)
    rows = on_policy(rows, naive_logprobs(twin, rows, temperature))
    learner, tally = learner_of(model, temperature=temperature), Tally()
    learner.accumulate([collate(rows, weights_of(rows, LossConfig()), range(8))], 1.0, None, tally, first=True)
    metrics = tally.metrics(1)
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["logprob_gap_max"] < 1e-5
    assert metrics["clip_high"] == metrics["clip_low"] == metrics["clip_dual"] == 0
    n_sampled = sum(int(row.sampled.sum()) for row in rows)
    scores = naive_logprobs(twin, rows, temperature)
    sum(
        -(torch.tensor(row.advantage) * score).sum() / n_sampled for row, score in zip(rows, scores, strict=True)
    ).backward()
    assert_close(gradients(learner), {name: p.grad for name, p in twin.named_parameters()}, tolerance=1e-5)


def test_no_gradient_reaches_the_logits_of_observation_tokens(make_model, make_rows, naive_logprobs):
    """The hidden state that predicts a token has a gradient exactly where the token is sampled or carries weight."""
    rows = make_rows(LENGTHS, ce=0.0)
    rows = on_policy(rows, naive_logprobs(make_model(), rows))  # no ratio is clipped
    for with_ce in (False, True):
        if with_ce:  # weight on one observation token of every row, as ECHO gives
            rows = [dataclasses.replace(row, ce_weight=(np.arange(len(row)) == 1).astype(np.float32)) for row in rows]
        learner = learner_of(make_model())
        hidden: list[torch.Tensor] = []

        def keep(module, args, output, hidden=hidden):
            output.last_hidden_state.retain_grad()
            hidden.append(output.last_hidden_state)

        learner.model.get_decoder().register_forward_hook(keep)
        learner.accumulate([collate(rows, weights_of(rows, learner.loss), range(8))], 1.0, None, Tally())
        (state,) = hidden
        for b, row in enumerate(rows):
            # a token forced among one allowed id is certain, and without a gradient too
            free = [n for n in range(1, len(row)) if row.allowed[n] is None or len(row.allowed[n]) > 1]
            reached = {n for n in range(1, state.shape[1]) if bool(state.grad[b, n - 1].abs().max() > 0)}
            assert reached == {n for n in free if row.sampled[n] or row.ce_weight[n]}
        assert state.grad[:, -1].abs().max() == 0


def test_minibatches_share_the_whole_gradient_out(make_model, make_rows):
    rows = make_rows(LENGTHS)
    weights = weights_of(rows, LossConfig())
    whole, parts = learner_of(make_model()), learner_of(make_model())
    whole.accumulate([collate(rows, weights, range(8))], 1.0, None, Tally())
    for share in ([0, 4, 6], [1, 7, 2], [3, 5]):  # each minibatch's loss is times their number; their mean is the whole
        parts.accumulate([collate(rows, weights, share)], 3.0, None, Tally())
    assert_close({name: grad / 3 for name, grad in gradients(parts).items()}, gradients(whole))


def test_an_update_moves_probability_towards_the_advantage(make_model, make_rows):
    learner = learner_of(make_model(), optim=OptimConfig(lr=1e-3))
    rows = make_rows([20, 20], restricted=0.0, ce=0.0)
    rows = [
        dataclasses.replace(row, rollout_logprobs=old) for row, old in zip(rows, learner.logprobs(rows), strict=True)
    ]
    rows = [
        dataclasses.replace(row, advantage=np.where(row.sampled, sign, 0).astype(np.float32))
        for row, sign in zip(rows, (1.0, -1.0), strict=True)
    ]
    metrics = learner.update(rows, step=0)
    up, down = (
        float((new - row.rollout_logprobs).sum()) for new, row in zip(learner.logprobs(rows), rows, strict=True)
    )
    assert up > 0.1
    assert down < -0.1
    assert metrics["logprob_gap_max"] == 0.0
    assert metrics["grad_norm"] > 0
    assert metrics["entropy"] > 0
    assert (metrics["rows"], metrics["tokens"], metrics["tokens_sampled"], metrics["optimizer_steps"]) == (2, 40, 18, 1)


def test_logprobs_fit_rollout_logprobs(make_model, make_rows, naive_logprobs):
    model, rows = make_model(), make_rows(LENGTHS)
    rows.append(dataclasses.replace(make_rows([6], seed=5)[0], prefix=(1, 20)))
    rows.append(dataclasses.replace(rows[0], sampled=np.zeros(5, dtype=bool)))
    scores = learner_of(model, temperature=0.8, tokens_per_microbatch=64).logprobs(rows)
    assert [len(score) for score in scores] == [len(row) for row in rows]
    for row, ours, brute in zip(rows, scores, naive_logprobs(model, materialise(rows), 0.8), strict=True):
        expected = np.where(row.sampled, brute.detach().numpy()[-len(row) :], 0)
        np.testing.assert_allclose(ours, expected, atol=5e-6)
        assert ours.dtype == np.float32


def test_rows_without_signal_count_but_do_not_run(make_model, make_rows, naive_logprobs):
    rows = make_rows(LENGTHS, ce=0.0)
    silent = [0, 1, 5]
    rows = [
        dataclasses.replace(row, advantage=np.zeros_like(row.advantage)) if index in silent else row
        for index, row in enumerate(rows)
    ]
    learner = learner_of(make_model(), optim=OptimConfig(grad_clip=0))
    n_tokens: list[int] = []
    learner.model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: n_tokens.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    metrics = learner.update(rows, step=0)
    assert sum(n_tokens) == 5
    assert metrics["rows_skipped"] == 3
    assert metrics["tokens"] == sum(LENGTHS) - 5 - 61 - 50
    # the gradient is that of all rows: the skipped ones' tokens stay in the denominator
    whole = learner_of(make_model())
    whole.accumulate([collate(rows, weights_of(rows, LossConfig()), range(8))], 1.0, None, Tally())
    norm = torch.stack([grad.norm() for grad in gradients(whole).values()]).norm()
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.parametrize("no_rows", [True, False])
def test_nothing_to_learn_changes_nothing(make_model, make_rows, no_rows):
    learner = learner_of(make_model(), epochs=2, minibatches=2)
    learner.update(make_rows(LENGTHS), step=0)  # momentum that a further step would move along
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    rows = [dataclasses.replace(row, advantage=np.zeros_like(row.advantage)) for row in make_rows(LENGTHS, ce=0.0)]
    metrics = learner.update([] if no_rows else rows, step=1)
    assert metrics["optimizer_steps"] == 0
    assert metrics["loss"] == 0
    for name, value in learner.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_kl_pulls_back_to_the_weights_at_construction(make_model, make_rows):
    model = make_model()
    learner = learner_of(model, LossConfig(kl=1.0), OptimConfig(lr=1e-3))
    rows = [dataclasses.replace(row, advantage=np.zeros_like(row.advantage)) for row in make_rows([30, 30], ce=0.0)]
    first = learner.update(rows, step=0)
    assert first["kl"] == pytest.approx(0.0, abs=1e-9)
    assert first["grad_norm"] == pytest.approx(0.0, abs=1e-5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    away = [learner.update(rows, step)["kl"] for step in range(1, 40)]
    assert away[0] > 0.01
    assert away[-1] < 0.5 * away[0]


@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_resume_from_a_checkpoint_is_bit_identical(make_model, make_rows, tmp_path, kl):
    def learner() -> Learner:
        return learner_of(
            make_model(),
            LossConfig(kl=kl),
            OptimConfig(lr=1e-3, warmup=3),
            epochs=2,
            minibatches=3,
            tokens_per_microbatch=128,
        )

    def play(learner: Learner, steps: range) -> list[dict[str, float]]:
        return [learner.update(make_rows(LENGTHS, seed=step), step) for step in steps]

    whole = learner()
    expected = play(whole, range(4))
    assert expected[0]["optimizer_steps"] == 6

    half = learner()
    play(half, range(2))
    state = half.state_dict()
    checkpoint.save(tmp_path, 2, state["model"], state["optimizer"], {})
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    rest = learner()
    rest.load_state_dict({"model": found.model_state, "optimizer": found.optim_state})
    assert play(rest, range(2, 4)) == expected[2:]
    for (name, ours), theirs in zip(rest.model.state_dict().items(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    ours, theirs = rest.state_dict()["optimizer"], whole.state_dict()["optimizer"]
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_bfloat16_model_keeps_float32_masters(make_model, make_rows):
    learner = learner_of(make_model().bfloat16(), optim=OptimConfig(lr=1e-5))
    before = {name: value.clone() for name, value in learner.state_dict()["optimizer"].items() if "master" in name}
    assert len(before) == len(list(learner.model.parameters()))
    learner.update(make_rows(LENGTHS), step=0)
    after = learner.state_dict()["optimizer"]
    assert all(not torch.equal(after[name], value) for name, value in before.items() if "norm" in name)


def test_a_gradient_that_is_not_finite_stops_the_run_and_spares_the_weights(make_model, make_rows):
    learner = learner_of(make_model())
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    rows = make_rows(LENGTHS)
    rows[0].advantage[rows[0].sampled] = np.inf
    with pytest.raises(RunFailed, match=r"gradient of training step 3 is not finite .* lower optim.lr \(now 0.0001\)"):
        learner.update(rows, step=3)
    assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())


def test_dropout_is_off_and_the_mode_is_given_back(make_model, make_rows):
    model = make_model(attention_dropout=0.5).train()
    learner = learner_of(model)
    rows = make_rows(LENGTHS)
    once, twice = learner.logprobs(rows), learner.logprobs(rows)
    assert all(np.array_equal(a, b) for a, b in zip(once, twice, strict=True))
    assert model.training


def test_a_loss_value_without_meaning_is_refused(make_model):
    with pytest.raises(UsageError, match="dual_clip"):
        learner_of(make_model(), LossConfig(dual_clip=0.9))


def test_norms_of_the_streams_are_those_of_each_alone_and_leave_the_update_as_it_is(make_model, make_rows):
    rows = make_rows(LENGTHS)
    plain, measuring = (
        learner_of(make_model(), minibatches=2),
        learner_of(make_model(), minibatches=2, stream_norms_every=2),
    )
    for step in range(3):
        torch.manual_seed(5)
        metrics, before = plain.update(rows, step), torch.get_rng_state()
        torch.manual_seed(5)
        measured = measuring.update(rows, step)
        assert torch.equal(torch.get_rng_state(), before)
        added = {"grad_norm_pg", "grad_norm_ce", "grad_norm_ratio"} if step % 2 == 0 else set()
        assert measured.keys() - metrics.keys() == added
        assert {name: measured[name] for name in metrics} == metrics
    for kind in ("model", "optimizer"):
        ours, theirs = measuring.state_dict()[kind], plain.state_dict()[kind]
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_norms_of_the_streams_against_updates_with_one_stream_alone(make_model, make_rows):
    rows = make_rows(LENGTHS)
    metrics = learner_of(make_model(), stream_norms_every=1).update(rows, 0)

    def norm_of(changed: list[Row]) -> float:
        return learner_of(make_model()).update(changed, 0)["grad_norm"]

    silent = {
        "advantage": lambda row: np.zeros_like(row.advantage),
        "ce_weight": lambda row: np.zeros_like(row.ce_weight),
    }

    def without(name: str) -> list[Row]:
        return [dataclasses.replace(row, **{name: silent[name](row)}) for row in rows]

    assert metrics["grad_norm_pg"] == pytest.approx(norm_of(without("ce_weight")), rel=1e-5)
    assert metrics["grad_norm_ce"] == pytest.approx(norm_of(without("advantage")), rel=1e-5)
    assert metrics["grad_norm_ratio"] == pytest.approx(metrics["grad_norm_ce"] / metrics["grad_norm_pg"])
    # Nothing to compare: no cross-entropy at all, or no policy gradient to divide by.
    every = learner_of(make_model(), stream_norms_every=1)
    assert not any("norm_" in name for name in every.update(without("ce_weight"), 0))
    alone = learner_of(make_model(), stream_norms_every=1).update(without("advantage"), 0)
    assert alone["grad_norm_pg"] == 0
    assert "grad_norm_ratio" not in alone
