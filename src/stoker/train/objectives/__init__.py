"""Training objectives: a batch in, the parts of its loss out. One file per objective, and the dict that names them.

A part is a sum over its targets. The loss of a step is the weighted sum of the parts, each divided by the number of its
targets over all workers, so it does not depend on how the step is divided among them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.data.any_set import AnySet
from stoker.spec import run as spec
from stoker.train.batches import TrainingBatch

IGNORED = -100
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Of a worker's share of a step."""

    tokens: int
    """Read by the model; speeds count these."""
    targets: tuple[int, ...]
    """Of each part."""


class Head(NamedTuple):
    logits_NV: Tensor
    goals_N: Tensor
    """The class to predict, or IGNORED."""


class TrainingObjective(Protocol):
    parts: tuple[str, ...]
    """Names of the parts of the loss, as in metrics.jsonl."""
    weights: tuple[float, ...]

    def count(self, batch: TrainingBatch) -> Counts: ...

    def cut(self, batch: TrainingBatch, *, number: int, size: int) -> Iterator[Inputs]:
        """As `number` micro-batches of `size` rows each; rows from `batch.live` on are padding and do not count."""

    def loss(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """The sum of each part, [parts]."""


class Plain(TrainingObjective, Protocol):
    """An objective that needs only the data. Evaluations use it, and distillation builds on it."""

    def heads(self, model: nn.Module, *inputs: Tensor) -> list[Head]:
        """The predictions, one per part. The first predicts tokens."""


PLAIN = {"causal": "stoker.train.objectives.causal", "masked": "stoker.train.objectives.masked"}


def plain(kind: str, tokens: AnySet, settings: spec.Objective, *, seed: int, device: torch.device) -> Plain:
    """For rows of this token set, or these sentence pairs."""
    return cast(Plain, import_module(PLAIN[kind]).objective(tokens, settings, seed, device))


def cross_entropies(heads: list[Head]) -> Tensor:
    return torch.stack(
        [F.cross_entropy(head.logits_NV.float(), head.goals_N, ignore_index=IGNORED, reduction="sum") for head in heads]
    )


def losses(objective: TrainingObjective, sums: Sequence[float], targets: Sequence[float]) -> dict[str, float]:
    """A step's loss, and its parts if it has several, as in metrics.jsonl."""
    means = [part / max(1, number) for part, number in zip(sums, targets, strict=True)]
    loss = sum(weight * mean for weight, mean in zip(objective.weights, means, strict=True))
    parts = dict(zip(objective.parts, means, strict=True)) if len(means) > 1 else {}
    return {"loss": loss, **parts}
