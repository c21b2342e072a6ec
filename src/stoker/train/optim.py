"""The optimizers with their decay groups, and the learning rate as a function of the step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from stoker.spec.derive import Derived
from stoker.spec.run import Optim

NamedParameters = Iterable[tuple[str, nn.Parameter]]


class Optimizer(ABC):
    """Groups of parameters with the settings of each, and the state of each parameter, which loading fills.

    It is no torch.optim.Optimizer: that one loads torch's compiler, a second's work, though most runs on a CPU compile
    nothing.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.param_groups = groups
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {
            p: {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
            for group in groups
            for p in group["params"]
        }

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            self._change(parameters, [p.grad for p in parameters], group)

    @abstractmethod
    def _change(self, parameters: list[nn.Parameter], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Those of a group that have gradients."""

    def _held(self, parameters: list[nn.Parameter], key: str) -> list[Tensor]:
        return [self.state[p][key] for p in parameters]


class AdamW(Optimizer):
    def _change(self, parameters: list[nn.Parameter], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        adamw(
            parameters,  # type: ignore[arg-type]
            gradients,
            self._held(parameters, "exp_avg"),
            self._held(parameters, "exp_avg_sq"),
            [],
            self._held(parameters, "step"),
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


class Lamb(Optimizer):
    """Adam's update, scaled in groups that `adapt` to the size of the tensor that it changes (You et al. 2020)."""

    def _change(self, parameters: list[nn.Parameter], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        averages, squares = self._held(parameters, "exp_avg"), self._held(parameters, "exp_avg_sq")
        steps = self._held(parameters, "step")
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(averages, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        for p, average, square, step in zip(parameters, averages, squares, steps, strict=True):
            taken = float(step)
            size = (square / (1 - beta2**taken)).sqrt_().add_(group["eps"])
            update = (average / (1 - beta1**taken)).div_(size).add_(p, alpha=group["weight_decay"])
            if group["adapt"]:
                weight, change = p.norm(), update.norm()
                update.mul_(torch.where((weight > 0) & (change > 0), weight / change, 1.0))
            p.sub_(update, alpha=group["lr"])


def optimizer(named: NamedParameters, optim: Optim) -> Optimizer:
    """Matrices and embeddings decay; biases and norms do not."""
    parameters = [p for _, p in named if p.requires_grad]
    shared = {"lr": optim.lr, "betas": optim.betas, "eps": optim.eps}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay, "adapt": True},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "adapt": False},
    ]
    kind = Lamb if optim.kind == "lamb" else AdamW
    return kind([shared | group for group in groups if group["params"]])


def optimizer_tensors(named: NamedParameters, optimizer: Optimizer) -> dict[str, dict[str, Tensor]]:
    """The optimizer's state by parameter name: what a checkpoint holds."""
    return {name: optimizer.state[p] for name, p in named if p.requires_grad}


def set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def learning_rate(optim: Optim, derived: Derived, update: int) -> float:
    """The rate of the `update`-th applied step, counted from 1. Skipped steps do not count."""
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
