"""The arithmetic of a step: model, precision, gradients, optimizer. No files, no clocks."""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stoker.spec.run import RunSpec
from stoker.train.batches import Batch
from stoker.train.choices import DTYPES, Choices
from stoker.train.devices import Device
from stoker.train.dist import Ranks
from stoker.train.guard import LossScale
from stoker.train.load import LoadedModel
from stoker.train.models import model_spec, weights
from stoker.train.objectives import Counts, Objective, Plain
from stoker.train.objectives.distill import Distill
from stoker.train.optim import optimizer, optimizer_tensors, set_rate
from stoker.train.origins import freeze_positions
from stoker.train.parallel import Gradients

MOST_SHAPES = 64  # of micro-batches; an objective cuts far fewer


class Engine:
    def __init__(
        self, spec: RunSpec, me: Ranks, device: Device, judged: Plain, *, teacher: LoadedModel | None = None
    ) -> None:
        self.spec, self.me, self.device = spec, me, device
        self.family = model_spec(spec.model.family)
        self.judged = judged
        self.objective: Objective = self.judged
        self.teacher = teacher
        self.teacher_size = sum(p.numel() for p in teacher.model.parameters()) if teacher else 0
        if teacher:
            self.objective = Distill(self.judged, teacher.model, spec.objective)
        if spec.deterministic:
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(spec.seed)  # every worker draws the same weights
        self.model = self.family.build(spec.model).to(device.torch)
        if spec.init.freeze_positions:
            freeze_positions(self.model, spec)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self.parameters)
        named = dict(self.model.named_parameters())
        self._buffers = [name for name in weights(self.model) if name not in named]
        self.optimizer = optimizer(named.items(), spec.optim)

    def settle(self, choices: Choices, *, accumulation: int, micro: int) -> None:
        """Fix what the spec left open: known only when a checkpoint, if any, has been read."""
        self.choices, self.accumulation, self.micro = choices, accumulation, micro
        self.gradients = Gradients(self.parameters, world=self.me.world)
        self.loss_scale = LossScale(active=choices.precision == "fp16")
        if self.teacher:
            for p in self.teacher.model.parameters():
                if p.dim() >= 2:  # as autocast would cast them for every product
                    p.data = p.data.to(DTYPES[choices.precision])
        self.loss = self._loss
        if choices.compile:
            torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs as it is
            # Each shape is compiled by itself: what a step computes must not depend on the shapes seen before it.
            torch._dynamo.config.recompile_limit = MOST_SHAPES
            self.loss = torch.compile(self._loss, dynamic=False)

    def tensors(self) -> dict[str, Any]:
        """All that a checkpoint must hold, by name; loading fills them in place."""
        named = self.model.named_parameters()
        return {"model": weights(self.model), "optim": optimizer_tensors(named, self.optimizer)}

    def count(self, batch: Batch) -> Counts:
        return self.objective.count(batch)

    def backward(self, batch: Batch, targets: Sequence[int]) -> tuple[Tensor, float]:
        """Sum the step's gradients over all workers; `targets` are those of all of them, for each part of the loss.

        Gives this worker's sum of each part, and the gradients' norm.
        """
        torch.manual_seed(_seed(self.spec.seed, batch.step, self.me.rank))  # dropout: a resumed step draws the same
        self.model.train()
        self.gradients.zero()
        factors = [
            self.loss_scale.scale * weight / max(1, number)
            for weight, number in zip(self.objective.weights, targets, strict=True)
        ]
        factors_P = torch.tensor(factors, device=self.device.torch)
        sums_P = torch.zeros(len(factors), dtype=torch.float64, device=self.device.torch)
        for i, inputs in enumerate(self.objective.cut(batch, number=self.accumulation, size=self.micro)):
            if i == self.accumulation - 1:
                self.gradients.send_with_next_backward()
            with self.autocast():
                parts_P = self.loss(*(tensor.to(self.device.torch, non_blocking=True) for tensor in inputs))
            (parts_P * factors_P).sum().backward()
            sums_P += parts_P.detach()
        self.gradients.finish()
        self._share_buffers()
        return sums_P, float(self.gradients.norm()) / self.loss_scale.scale

    def apply(self, *, norm: float, rate: float) -> None:
        clip = self.spec.optim.clip
        factor = 1 / self.loss_scale.scale
        if clip is not None and norm > clip:
            factor *= clip / norm
        if factor != 1:
            self.gradients.scale(factor)
        set_rate(self.optimizer, rate)
        self.optimizer.step()

    @torch.no_grad()
    def judge(self, batch: Batch) -> list[float]:
        """The sum of each part of the plain loss over held-out rows, without dropout."""
        self.model.eval()
        sums = [0.0] * len(self.judged.parts)
        for inputs in self.judged.cut(batch, number=-(-len(batch.rows) // self.micro), size=self.micro):
            with self.autocast():
                parts_P = self.judged.loss(self.model, *(tensor.to(self.device.torch) for tensor in inputs))
            sums = [before + new for before, new in zip(sums, parts_P.tolist(), strict=True)]
        return sums

    def attention_extremes(self, rows: Tensor) -> list[tuple[float, float]]:
        assert self.family.attention_extremes is not None, "the spec refuses it"
        self.model.eval()
        with self.autocast():
            return self.family.attention_extremes(self.model, rows[:, :-1].to(self.device.torch))

    @torch.no_grad()
    def parameter_statistics(self) -> dict[str, dict[str, float]]:
        found = {}
        for name, p in self.model.named_parameters():
            if p.grad is None:
                continue  # not trained
            found[name] = {
                "parameter_mean": float(p.mean()),
                "parameter_std": float(p.std()) if p.numel() > 1 else 0.0,
                "grad_mean": float(p.grad.mean()),
                "grad_std": float(p.grad.std()) if p.numel() > 1 else 0.0,
            }
        return found

    def autocast(self) -> AbstractContextManager[object]:
        if self.choices.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.torch.type, dtype=DTYPES[self.choices.precision])

    def _share_buffers(self) -> None:
        """All workers go on with those of the first: a forward may have changed them, each by its part of the batch."""
        if not self._buffers or self.me.world == 1:
            return
        held = weights(self.model)
        for name in self._buffers:
            tensor = held[name]
            dist.broadcast(torch.view_as_real(tensor) if tensor.is_complex() else tensor, src=0)

    def _loss(self, *inputs: Tensor) -> Tensor:
        return self.objective.loss(self.model, *inputs)


def _seed(*parts: int) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
