"""AdamW with decay groups, and the learning rate as a function of the step."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from stoker.spec.derive import Derived
from stoker.spec.run import Optim

NamedParameters = Iterable[tuple[str, nn.Parameter]]


def adamw(named: NamedParameters, optim: Optim) -> torch.optim.AdamW:
    """Matrices and embeddings decay; biases and norms do not. State exists from the start: loading fills it."""
    parameters = [p for _, p in named if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True
    )
    for p in parameters:
        optimizer.state[p] = {
            "step": torch.zeros((), dtype=torch.float32, device=p.device),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
        }
    return optimizer


def optimizer_tensors(named: NamedParameters, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """The optimizer's state by parameter name: what a checkpoint holds."""
    return {name: optimizer.state[p] for name, p in named if p.requires_grad}


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
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
