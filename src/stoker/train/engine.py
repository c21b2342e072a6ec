"""The arithmetic of a step: model, precision, gradients, optimizer. No files, no clocks."""

import hashlib
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
from stoker.train.models import model_spec, weights
from stoker.train.objectives import OBJECTIVES
from stoker.train.optim import adamw, optimizer_tensors, set_rate
from stoker.train.parallel import Gradients


class Engine:
    def __init__(self, spec: RunSpec, me: Ranks, device: Device) -> None:
        self.spec, self.me, self.device = spec, me, device
        self.family = model_spec(spec.model.family)
        self.objective = OBJECTIVES[spec.objective.kind]
        if spec.deterministic:
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(spec.seed)  # every worker draws the same weights
        self.model = self.family.build(spec.model).to(device.torch)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self.parameters)
        named = dict(self.model.named_parameters())
        self._buffers = [name for name in weights(self.model) if name not in named]
        self.optimizer = adamw(named.items(), spec.optim)

    def settle(self, choices: Choices, *, accumulation: int, micro: int) -> None:
        """Fix what the spec left open: known only when a checkpoint, if any, has been read."""
        self.choices, self.accumulation, self.micro = choices, accumulation, micro
        self.gradients = Gradients(self.parameters, world=self.me.world)
        self.loss_scale = LossScale(active=choices.precision == "fp16")
        self.loss = self._loss
        if choices.compile:
            torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs as it is
            self.loss = torch.compile(self._loss)

    def tensors(self) -> dict[str, Any]:
        """All that a checkpoint must hold, by name; loading fills them in place."""
        named = self.model.named_parameters()
        return {"model": weights(self.model), "optim": optimizer_tensors(named, self.optimizer)}

    def backward(self, batch: Batch, targets: int) -> tuple[Tensor, float]:
        """Sum the step's gradients over all workers. Gives this worker's part of the loss, and the gradients' norm."""
        torch.manual_seed(_seed(self.spec.seed, batch.step, self.me.rank))  # dropout: a resumed step draws the same
        self.model.train()
        self.gradients.zero()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device.torch)
        for i in range(self.accumulation):
            rows = batch.rows[i * self.micro : (i + 1) * self.micro].to(self.device.torch, non_blocking=True)
            goals = self.objective.targets(rows, min(self.micro, max(0, batch.live - i * self.micro)))
            if i == self.accumulation - 1:
                self.gradients.send_with_next_backward()
            with self.autocast():
                loss = self.loss(rows, goals)
            (loss * (self.loss_scale.scale / targets)).backward()
            loss_sum += loss.detach()
        self.gradients.finish()
        self._share_buffers()
        return loss_sum, float(self.gradients.norm()) / self.loss_scale.scale

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
    def loss_of(self, rows: Tensor) -> float:
        """The summed loss of held-out rows, without dropout."""
        self.model.eval()
        loss_sum = 0.0
        for part in rows.split(self.micro):
            part = part.to(self.device.torch)
            with self.autocast():
                loss_sum += float(self._loss(part, self.objective.targets(part, len(part))))
        return loss_sum

    def attention_extremes(self, rows: Tensor) -> list[tuple[float, float]]:
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

    def _loss(self, rows: Tensor, goals: Tensor) -> Tensor:
        return self.objective.loss(self.model, rows, goals)


def _seed(*parts: int) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
