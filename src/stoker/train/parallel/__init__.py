"""How a model and a batch are spread over the workers: the degrees, and the strategy that carries them out.

The engine builds a model on the meta device and leaves to the strategy how its parts are spread over the workers:

    build on meta -> shard -> memory and initial weights -> compile -> optimizer -> load a checkpoint

It assumes nothing about how much of the model a worker holds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import ceil, prod
from typing import Protocol, cast

from torch import Tensor, nn

from stoker.models import ModelSpec
from stoker.models.decoder import MakeDecoder
from stoker.models.initial_weights import ParameterBlock
from stoker.spec.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel:
    """The number of workers along each way of splitting the work. Their product is the world size.

    Ranks are numbered with `tensor` fastest, then `context`, `shard` and `data`: workers that exchange most are
    neighbours.
    """

    world: int
    data: int = 1
    """Groups of workers that each hold the whole model, and train on different samples."""
    shard: int = 1
    """Workers that split parameters, gradients and optimizer state among them, and train on different samples."""
    tensor: int = 1
    """Workers that split each matrix, and train on the same samples."""
    context: int = 1
    """Workers that split each sequence, and train on the same samples."""

    def __post_init__(self) -> None:
        degrees = {"data": self.data, "shard": self.shard, "tensor": self.tensor, "context": self.context}
        if min(degrees.values()) < 1 or prod(degrees.values()) != self.world:
            listed = " × ".join(f"{name} {degree}" for name, degree in degrees.items())
            raise UserError(
                f"parallel: {listed} is not the number of workers, {self.world}",
                remedy="Choose degrees whose product is the number of workers",
            )

    @property
    def batch_shares(self) -> int:
        """Parts that a batch is divided into."""
        return self.data * self.shard

    def batch_share(self, rank: int) -> int:
        """Which of these parts a worker trains on."""
        return rank // (self.tensor * self.context)

    def held(self, parameters: int) -> int:
        """Of so many parameters, how many a worker holds with their gradients and optimizer state."""
        return ceil(parameters / (self.shard * self.tensor))


class Gradients(Protocol):
    """The gradients of a step. Every method is called by all workers in the same order."""

    def zero(self) -> None: ...

    def send_with_next_backward(self) -> None:
        """Call before the last micro-batch of a step: its backward completes the sums."""

    def finish(self) -> None:
        """Wait until each worker holds the sum over all workers, of the parameters that it holds."""

    def norm(self) -> Tensor:
        """Of the gradient of the whole model."""

    def scale(self, factor: float) -> None: ...


class Strategy(Protocol):
    parallel: Parallel

    def shard(self, model: nn.Module) -> None:
        """Replace parameters by this worker's part of them. The model may be on the meta device."""

    def block(self, parameter: Tensor) -> ParameterBlock:
        """What this worker holds of a parameter."""

    def gradients(self, parameters: Sequence[nn.Parameter]) -> Gradients: ...

    def share_buffers(self, buffers: Iterable[Tensor]) -> None:
        """Copy the buffers of the first worker to all: a forward may have changed them on each worker."""

    def decoder(self, family: ModelSpec) -> MakeDecoder:
        """How a sample is generated from the model as it is split. Used by all workers."""

    def mean_and_std(self, tensor: Tensor) -> tuple[float, float]:
        """Of a whole parameter or gradient. Called by all workers."""


STRATEGIES = {"replicate": "stoker.train.parallel.replicate"}


def strategy(kind: str, parallel: Parallel) -> Strategy:
    return cast(Strategy, import_module(STRATEGIES[kind]).strategy(parallel))
