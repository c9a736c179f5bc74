"""AdamW as language models are trained: no decay on norms and biases, warm-up by step, float32 master weights.

The learning rate is a function of the training step alone, so a resumed run needs no schedule's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentcredit.config import OptimConfig
from agentcredit.errors import UsageError

if TYPE_CHECKING:
    import torch


def learning_rate(step: int, config: OptimConfig) -> float:
    """Rate of training step ``step`` (from 0): linear up over ``warmup`` steps, then constant or linear down to 0.

    The fall reaches 0 at step ``decay_steps`` and stays there.
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if not config.decay_steps:
        return config.lr
    return config.lr * max(0.0, (config.decay_steps - step) / (config.decay_steps - config.warmup))


class MasterAdamW:
    """AdamW over float32 masters of a model's trainable parameters.

    A float32 parameter is its own master. One in bfloat16 has a float32 copy: an update of a relative 1e-3 would
    vanish in bfloat16's 8 bits, and so would a micro-batch's share in a sum of gradients.

    Raises:
        UsageError: the learning rate would reach 0 before the warm-up ends.
    """

    def __init__(self, model: Any, config: OptimConfig) -> None:
        import torch

        if 0 < config.decay_steps <= config.warmup:
            raise UsageError(
                f"optim.decay_steps is {config.decay_steps}, within the warm-up of {config.warmup} steps; give more "
                "steps than optim.warmup, or 0 for a constant rate."
            )
        self.config = config
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._masters: dict[str, torch.nn.Parameter] = {
            name: p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float())
            for name, p in self._parameters.items()
        }
        decayed = [p for p in self._masters.values() if p.ndim >= 2]
        spared = [p for p in self._masters.values() if p.ndim < 2]
        self._adam = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": spared, "weight_decay": 0.0}],
            lr=config.lr,
            betas=config.betas,
        )

    def zero_grad(self) -> None:
        """Forgets all gradients."""
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self._masters[name].grad = None

    def collect(self) -> None:
        """Adds the parameters' gradients to the masters'; to be called after each micro-batch's backward pass."""
        for name, parameter in self._parameters.items():
            master = self._masters[name]
            if master is not parameter and parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def clip(self) -> float:
        """Scales the gradient down to the configured norm, and returns the norm that it had."""
        import torch

        bound = self.config.grad_clip or float("inf")
        return float(torch.nn.utils.clip_grad_norm_(self._masters.values(), bound))

    def norm(self) -> float:
        """Norm of the gradient, which stays as it is."""
        import torch

        return float(torch.nn.utils.get_total_norm([p.grad for p in self._masters.values() if p.grad is not None]))

    def step(self, lr: float) -> None:
        """One update with this learning rate; the gradients are used up."""
        import torch

        for group in self._adam.param_groups:
            group["lr"] = lr
        self._adam.step()
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if self._masters[name] is not parameter:
                    parameter.copy_(self._masters[name])
        self.zero_grad()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Moments and step counts as ``<parameter>/<name>``, and the masters that are copies as ``<parameter>/master``.

        The tensors are the live ones; nothing is copied.
        """
        state = {
            f"{name}/{key}": value
            for name, master in self._masters.items()
            for key, value in self._adam.state.get(master, {}).items()
        }
        copies = {
            f"{name}/master": master.detach()
            for name, master in self._masters.items()
            if master is not self._parameters[name]
        }
        return state | copies

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores what :meth:`state_dict` gave, by value.

        Raises:
            ValueError: a name belongs to no parameter of this model.
        """
        import torch

        self._adam.state.clear()
        for key, value in state.items():
            name, _, kind = key.rpartition("/")
            if name not in self._masters:
                raise ValueError(f"the optimiser's state has '{key}', and the model no such parameter")
            master = self._masters[name]
            if kind == "master":
                with torch.no_grad():
                    master.copy_(value)
            else:
                # Adam keeps its step count on the CPU whatever the device.
                device = value.device if kind == "step" else master.device
                self._adam.state[master][kind] = value.detach().to(device, copy=True)
