"""What a model learns to do: a batch in, the parts of its loss out. One file each, and the dict that names them.

A part is a sum over its targets. The loss of a step is the weighted sum of the parts, each divided by its targets over
all workers: so it does not depend on how the step was shared out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.data.pairs import AnySet
from stoker.spec import run as spec
from stoker.train.batches import Batch

IGNORED = -100
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Of a worker's share of a step."""

    tokens: int
    """Given to the model: what speed counts."""
    targets: tuple[int, ...]
    """Of each part."""


class Head(NamedTuple):
    logits_NV: Tensor
    goals_N: Tensor
    """The class to predict; IGNORED where there is none."""


class Objective(Protocol):
    parts: tuple[str, ...]
    """What the loss is made of, by the names that metrics.jsonl gives them."""
    weights: tuple[float, ...]

    def count(self, batch: Batch) -> Counts: ...

    def cut(self, batch: Batch, *, number: int, size: int) -> Iterator[Inputs]:
        """As `number` micro-batches of `size` rows each; rows from `batch.live` on carry no weight."""

    def loss(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """The sum of each part, [parts]."""


class Plain(Objective, Protocol):
    """One that needs nothing but the data. What is held out is judged by it, and it can be taught by a teacher."""

    def heads(self, model: nn.Module, *inputs: Tensor) -> list[Head]:
        """What is predicted, a part each. The first is of words."""


PLAIN = {"causal": "stoker.train.objectives.causal", "masked": "stoker.train.objectives.masked"}


def plain(kind: str, tokens: AnySet, settings: spec.Objective, *, seed: int, device: torch.device) -> Plain:
    """For rows of these tokens, or pairs."""
    return cast(Plain, import_module(PLAIN[kind]).objective(tokens, settings, seed, device))


def cross_entropies(heads: list[Head]) -> Tensor:
    return torch.stack(
        [F.cross_entropy(head.logits_NV.float(), head.goals_N, ignore_index=IGNORED, reduction="sum") for head in heads]
    )


def losses(objective: Objective, sums: Sequence[float], targets: Sequence[float]) -> dict[str, float]:
    """What metrics.jsonl says of a step: the loss, and its parts where there are several."""
    means = [part / max(1, number) for part, number in zip(sums, targets, strict=True)]
    loss = sum(weight * mean for weight, mean in zip(objective.weights, means, strict=True))
    parts = dict(zip(objective.parts, means, strict=True)) if len(means) > 1 else {}
    return {"loss": loss, **parts}
