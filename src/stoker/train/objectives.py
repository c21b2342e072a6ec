"""What a model learns to do: rows of tokens in, the sum of the losses over all targets out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    targets: Callable[[Tensor, int], Tensor]
    """(rows, live) -> what to predict; rows from `live` on carry no weight."""
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    """(model, rows, targets) -> sum over the targets."""


def _next_token_targets(rows_BS: Tensor, live: int) -> Tensor:
    targets_BT = rows_BS[:, 1:].clone()
    targets_BT[live:] = IGNORED
    return targets_BT


def _next_token_loss(model: nn.Module, rows_BS: Tensor, targets_BT: Tensor) -> Tensor:
    logits_BTV = model(rows_BS[:, :-1])
    return F.cross_entropy(
        logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), ignore_index=IGNORED, reduction="sum"
    )


OBJECTIVES = {"causal": Objective(targets=_next_token_targets, loss=_next_token_loss)}
