"""Every worker holds the whole model; gradients are summed in a fixed order.

Gradients live in flat buckets, laid out once in the reverse order of the parameters and never rebuilt: the sum of a
step has the same bits before and after a resume, at any number of workers. A bucket is sent as soon as it and all
before it are full, so communication overlaps the rest of the backward pass and every worker sends in the same order.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stoker.models import ModelSpec
from stoker.models.decoder import MakeDecoder
from stoker.models.initial_weights import ParameterBlock
from stoker.train.parallel import Parallel

BUCKET_BYTES = 25 * 2**20


class Replicate:
    def __init__(self, parallel: Parallel) -> None:
        assert parallel.data == parallel.world, "nothing is split"
        self.parallel = parallel

    def shard(self, model: nn.Module) -> None:
        """Nothing to do: each worker holds all of it."""

    def block(self, parameter: Tensor) -> ParameterBlock:
        return ParameterBlock.whole(parameter)

    def gradients(self, parameters: Sequence[nn.Parameter]) -> "SummedGradients":
        return SummedGradients(parameters, world=self.parallel.world)

    def share_buffers(self, buffers: Iterable[Tensor]) -> None:
        if self.parallel.world == 1:
            return
        for buffer in buffers:
            dist.broadcast(torch.view_as_real(buffer) if buffer.is_complex() else buffer, src=0)

    def decoder(self, family: ModelSpec) -> MakeDecoder:
        return family.decoder

    def mean_and_std(self, tensor: Tensor) -> tuple[float, float]:
        return float(tensor.mean()), float(tensor.std()) if tensor.numel() > 1 else 0.0


def strategy(parallel: Parallel) -> Replicate:
    return Replicate(parallel)


class SummedGradients:
    def __init__(self, parameters: Sequence[nn.Parameter], *, world: int) -> None:
        self.world = world
        self.flat: list[Tensor] = []
        self._missing_at_start: list[int] = []
        for bucket in _buckets(parameters):
            index = len(self.flat)
            flat = torch.zeros(sum(p.numel() for p in bucket), dtype=bucket[0].dtype, device=bucket[0].device)
            offset = 0
            for p in bucket:
                p.grad = flat[offset : offset + p.numel()].view_as(p)
                offset += p.numel()
                if world > 1:
                    p.register_post_accumulate_grad_hook(lambda _p, i=index: self._arrived(i))
            self.flat.append(flat)
            self._missing_at_start.append(len(bucket))
        self._sending = False

    def zero(self) -> None:
        for flat in self.flat:
            flat.zero_()

    def send_with_next_backward(self) -> None:
        self._sending = self.world > 1
        self._missing = list(self._missing_at_start)
        self._sent = 0
        self._works: list[dist.Work] = []

    def finish(self) -> None:
        if not self._sending:
            return
        while self._sent < len(self.flat):
            self._send()
        for work in self._works:
            work.wait()
        self._sending = False

    def norm(self) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(flat) for flat in self.flat]))
        return norm

    def scale(self, factor: float) -> None:
        for flat in self.flat:
            flat.mul_(factor)

    def _arrived(self, index: int) -> None:
        if not self._sending:
            return
        self._missing[index] -= 1
        while self._sent < len(self.flat) and self._missing[self._sent] == 0:
            self._send()

    def _send(self) -> None:
        work = dist.all_reduce(self.flat[self._sent], async_op=True)
        assert work is not None
        self._works.append(work)
        self._sent += 1


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = [[]]
    size = 0
    for p in reversed(parameters):
        if buckets[-1] and size + p.nbytes > BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(p)
        size += p.nbytes
    return buckets
