"""Distillation: predict what a teacher predicts, besides the plain objective of the model family.

loss = alpha_ce · temperature² · KL(teacher ‖ student) + alpha_clm · plain loss + alpha_mse · |difference of logits|²

KL and the squared difference are of the first head, averaged over the positions that have a target.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.spec.run import Objective as Settings
from stoker.train.batches import TrainingBatch
from stoker.train.objectives import IGNORED, Counts, Head, Inputs, Plain, cross_entropies


class Distill:
    def __init__(self, base: Plain, teacher: nn.Module, settings: Settings) -> None:
        self._base, self._teacher, self._settings = base, teacher, settings
        plain_parts = ("loss_clm",) if len(base.parts) == 1 else base.parts
        plain_weights = tuple(settings.alpha_clm * weight for weight in base.weights)
        self.parts = ("loss_ce", *plain_parts, "loss_mse")
        self.weights = (settings.alpha_ce, *plain_weights, settings.alpha_mse)

    def count(self, batch: TrainingBatch) -> Counts:
        counts = self._base.count(batch)
        first = counts.targets[0]
        return Counts(tokens=counts.tokens, targets=(first, *counts.targets, first))

    def cut(self, batch: TrainingBatch, *, number: int, size: int) -> Iterator[Inputs]:
        return self._base.cut(batch, number=number, size=size)

    def loss(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        heads = self._base.heads(model, *inputs)
        with torch.no_grad():
            teacher_NV = self._base.heads(self._teacher, *inputs)[0].logits_NV
        divergence = soft_cross_entropy(heads[0], teacher_NV, self._settings.temperature)
        difference = squared_difference(heads[0], teacher_NV)
        return torch.cat([divergence[None], cross_entropies(heads), difference[None]])


def soft_cross_entropy(student: Head, teacher_NV: Tensor, temperature: float) -> Tensor:
    """temperature² · KL divergence, summed over the targets."""
    ours_NV = F.log_softmax(student.logits_NV.float() / temperature, dim=1)
    theirs_NV = F.log_softmax(teacher_NV.float() / temperature, dim=1)
    divergence_N = F.kl_div(ours_NV, theirs_NV, reduction="none", log_target=True).sum(1)
    return temperature**2 * _over_targets(divergence_N, student.goals_N)


def squared_difference(student: Head, teacher_NV: Tensor) -> Tensor:
    return _over_targets((student.logits_NV.float() - teacher_NV.float()).square().sum(1), student.goals_N)


def _over_targets(values_N: Tensor, goals_N: Tensor) -> Tensor:
    return values_N.masked_fill(goals_N == IGNORED, 0.0).sum()
