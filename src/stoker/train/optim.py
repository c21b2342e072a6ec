"""The optimizers with their decay groups, and the learning rate as a function of the step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from stoker.spec.derive import Derived
from stoker.spec.run import Optim

NamedParameters = Iterable[tuple[str, nn.Parameter]]
Group = dict[str, Any]  # `params` and the settings that they share


class StatefulOptimizer(Optimizer, ABC):
    """A torch optimizer whose state exists from the start, so that a checkpoint can be loaded into it in place."""

    def __init__(self, groups: list[Group]) -> None:
        super().__init__(groups, {})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32, device=p.device),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }

    def add_param_group(self, param_group: Group) -> None:
        """torch's own method without the decorator that loads torch's compiler: 1.2 CPU seconds of each worker's start,
        though most runs on a CPU compile nothing."""
        unwrap(Optimizer.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are computed by the engine"
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            self._update(parameters, [p.grad for p in parameters], group)

    @abstractmethod
    def _update(self, parameters: list[nn.Parameter], gradients: list[Tensor], group: Group) -> None:
        """Change these parameters of a group by their gradients."""

    def _states(self, parameters: list[nn.Parameter], key: str) -> list[Tensor]:
        return [self.state[p][key] for p in parameters]


class AdamW(StatefulOptimizer):
    def _update(self, parameters: list[nn.Parameter], gradients: list[Tensor], group: Group) -> None:
        beta1, beta2 = group["betas"]
        adamw(
            parameters,  # type: ignore[arg-type]
            gradients,
            self._states(parameters, "exp_avg"),
            self._states(parameters, "exp_avg_sq"),
            [],
            self._states(parameters, "step"),
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


class Lamb(StatefulOptimizer):
    """Adam's update, in groups that `adapt` scaled to the norm of the tensor that it changes (You et al. 2020)."""

    def _update(self, parameters: list[nn.Parameter], gradients: list[Tensor], group: Group) -> None:
        beta1, beta2 = group["betas"]
        averages, squares = self._states(parameters, "exp_avg"), self._states(parameters, "exp_avg_sq")
        steps = self._states(parameters, "step")
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(averages, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        for p, average, square, step in zip(parameters, averages, squares, steps, strict=True):
            updates = float(step)
            size = (square / (1 - beta2**updates)).sqrt_().add_(group["eps"])
            update = (average / (1 - beta1**updates)).div_(size).add_(p, alpha=group["weight_decay"])
            if group["adapt"]:
                weight, change = p.norm(), update.norm()
                update.mul_(torch.where((weight > 0) & (change > 0), weight / change, 1.0))
            p.sub_(update, alpha=group["lr"])


def optimizer(named: NamedParameters, optim: Optim) -> StatefulOptimizer:
    """Matrices and embeddings decay; biases and norms do not."""
    parameters = [p for _, p in named if p.requires_grad]
    shared = {"lr": optim.lr, "betas": optim.betas, "eps": optim.eps}
    groups: list[Group] = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay, "adapt": True},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "adapt": False},
    ]
    kind = Lamb if optim.kind == "lamb" else AdamW
    return kind([shared | group for group in groups if group["params"]])


def optimizer_tensors(named: NamedParameters, optimizer: StatefulOptimizer) -> dict[str, dict[str, Tensor]]:
    """The state by parameter name, as a checkpoint holds it."""
    return {name: optimizer.state[p] for name, p in named if p.requires_grad}


def set_rate(optimizer: StatefulOptimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def learning_rate(optim: Optim, derived: Derived, update: int) -> float:
    """The rate of the `update`-th applied step, counted from 1; skipped steps do not count."""
    if update <= derived.warmup:
        return optim.lr * _rise(optim.warmup_shape, update, derived.warmup)
    fall = _FALLS[optim.schedule](update, derived)
    return optim.lr * (optim.floor + (1 - optim.floor) * fall)


def _rise(shape: str, update: int, warmup: int) -> float:
    if shape == "linear" or warmup < 2:
        return update / warmup
    return math.log(update) / math.log(warmup)


def _progress(update: int, start: int, derived: Derived) -> float:
    return min(1.0, max(0.0, (update - start) / derived.decay))


_FALLS = {
    "constant": lambda update, derived: 1.0,  # noqa: ARG005
    "cosine": lambda update, derived: 0.5 * (1 + math.cos(math.pi * _progress(update, derived.warmup, derived))),
    "linear": lambda update, derived: 1 - _progress(update, derived.warmup, derived),
    "wsd": lambda update, derived: 1 - _progress(update, derived.horizon - derived.decay, derived),
}
