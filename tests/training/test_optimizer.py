from __future__ import annotations

import pytest
import torch

from agentcredit.config import OptimConfig
from agentcredit.errors import UsageError
from agentcredit.training.optimizer import MasterAdamW, learning_rate


def test_warm_up_is_linear_then_constant():
    config = OptimConfig(lr=1e-3, warmup=4)
    assert [learning_rate(step, config) for step in range(6)] == pytest.approx(
        [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3]
    )
    assert learning_rate(0, OptimConfig(lr=1e-3)) == 1e-3


def test_the_rate_falls_to_zero_at_decay_steps():
    config = OptimConfig(lr=1e-3, warmup=2, decay_steps=6)
    assert [learning_rate(step, config) for step in range(8)] == pytest.approx(
        [0.5e-3, 1e-3, 1e-3, 0.75e-3, 0.5e-3, 0.25e-3, 0, 0]
    )


def test_a_fall_within_the_warm_up_is_refused():
    with pytest.raises(UsageError, match=r"optim\.decay_steps is 3, within the warm-up of 5 steps"):
        MasterAdamW(torch.nn.Linear(1, 1), OptimConfig(warmup=5, decay_steps=3))


def test_norms_and_biases_do_not_decay():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = MasterAdamW(model, OptimConfig(weight_decay=0.5))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step(lr=0.1)
    for name, p in model.named_parameters():
        kept = 1 - 0.1 * 0.5 if name == "0.weight" else 1.0
        torch.testing.assert_close(p.detach(), kept * before[name])


@pytest.mark.parametrize(("bound", "after"), [(1.0, [0.6, 0.8]), (0.0, [3.0, 4.0]), (10.0, [3.0, 4.0])])
def test_the_gradient_is_clipped_by_its_norm(bound, after):
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = MasterAdamW(model, OptimConfig(grad_clip=bound))
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert optimizer.clip() == pytest.approx(5.0)
    torch.testing.assert_close(model.weight.grad, torch.tensor([after]), rtol=1e-5, atol=0)


def test_small_updates_of_bfloat16_weights_are_not_lost():
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = MasterAdamW(model, OptimConfig(weight_decay=0.0))
    for _ in range(50):  # a constant gradient moves Adam by lr a step; 1 − 1e-4 is 1 in bfloat16
        for _ in range(2):
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.collect()
        optimizer.step(lr=1e-4)
    assert optimizer.state_dict()["weight/master"].item() == pytest.approx(0.995, abs=1e-5)
    assert model.weight.item() == torch.tensor(0.995).bfloat16().item()


def test_micro_batch_gradients_add_up_in_float32():
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    optimizer = MasterAdamW(model, OptimConfig(grad_clip=0))
    for gradient in (1.0, *[1 / 512] * 256):  # 1 + 1/512 is 1 in bfloat16
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimizer.collect()
    assert optimizer.clip() == pytest.approx(1.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_goes_through_save_and_load(dtype):
    def trained(steps, state=None, weights=None):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(dtype)
        if weights is not None:
            model.load_state_dict(weights)
        optimizer = MasterAdamW(model, OptimConfig())
        if state is not None:
            optimizer.load_state_dict(state)
        for step in steps:
            for k, p in enumerate(model.parameters()):
                p.grad = torch.full_like(p, 0.1 + step - k)
            optimizer.collect()
            optimizer.step(lr=1e-3)
        return model, optimizer

    whole, _ = trained(range(6))
    half, optimizer = trained(range(3))
    rest, _ = trained(range(3, 6), optimizer.state_dict(), half.state_dict())
    for ours, theirs in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_state_of_another_model_is_refused():
    optimizer = MasterAdamW(torch.nn.Linear(1, 1), OptimConfig())
    with pytest.raises(ValueError, match=r"'layer.weight/exp_avg'"):
        optimizer.load_state_dict({"layer.weight/exp_avg": torch.zeros(1)})
