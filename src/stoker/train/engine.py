"""The arithmetic of a step: model, precision, gradients, optimizer. No files, no clocks."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from stoker.models import model_spec, weights
from stoker.models.build import build, draw_weights, materialise
from stoker.models.generate import Settings, generate
from stoker.models.load import LoadedModel
from stoker.spec.run import RunSpec
from stoker.train.batches import TrainingBatch
from stoker.train.choices import DTYPES, Choices
from stoker.train.devices import Device
from stoker.train.nonfinite import LossScale
from stoker.train.objectives import Counts, Plain, TrainingObjective
from stoker.train.objectives.distill import Distill
from stoker.train.optim import optimizer, optimizer_tensors, set_rate
from stoker.train.origins import freeze_positions
from stoker.train.parallel import Parallel, strategy
from stoker.train.process_group import Ranks

MAX_COMPILED_SHAPES = 64  # of micro-batches; an objective makes far fewer


class Engine:
    """Made in two steps: the constructor builds the model without memory, which tells its size; `materialise` gives it
    memory and weights, once the choices that depend on that size are made. Then a checkpoint can be loaded into it.
    """

    def __init__(
        self, spec: RunSpec, worker: Ranks, device: Device, plain: Plain, *, teacher: LoadedModel | None = None
    ) -> None:
        self.spec, self.worker, self.device = spec, worker, device
        self.family = model_spec(spec.model.family)
        self.plain = plain
        """The objective without a teacher, for evaluations."""
        self.objective: TrainingObjective = plain
        self.teacher = teacher
        self.teacher_size = sum(p.numel() for p in teacher.model.parameters()) if teacher else 0
        if teacher:
            self.objective = Distill(plain, teacher.model, spec.objective)
        if spec.deterministic:
            torch.use_deterministic_algorithms(True)
        self.parallel = Parallel(world=worker.world, data=worker.world)
        self.strategy = strategy("replicate", self.parallel)
        torch.manual_seed(spec.seed)  # for a model of the user's own, which draws its weights when it is built
        self.model = build(spec.model)
        if spec.init.freeze_positions:
            freeze_positions(self.model, spec)
        self.size = sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def materialise(self, choices: Choices, *, accumulation: int, micro: int, draw: bool = True) -> None:
        """Shard, allocate, draw the initial weights, compile, make the optimizer: in this order.

        Without `draw` the weights are undefined until they are loaded.
        """
        self.choices, self.accumulation, self.micro = choices, accumulation, micro
        self.strategy.shard(self.model)
        self.model = materialise(self.model, self.device.torch)
        if draw:
            draw_weights(self.model, self.spec.model, seed=self.spec.seed, block=self.strategy.block)
        named = dict(self.model.named_parameters())
        self._buffers = [name for name in weights(self.model) if name not in named]
        self.gradients = self.strategy.gradients([p for p in named.values() if p.requires_grad])
        self.loss_scale = LossScale(active=choices.precision == "fp16")
        self._cast_teacher(DTYPES[choices.precision])
        self.loss = self._compiled() if choices.compile else self._loss
        self.optimizer = optimizer(named.items(), self.spec.optim)

    def _cast_teacher(self, dtype: torch.dtype) -> None:
        for p in self.teacher.model.parameters() if self.teacher else ():
            if p.dim() >= 2:  # autocast would cast these again for every product
                p.data = p.data.to(dtype)

    def _compiled(self) -> Callable[..., Tensor]:
        torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs uncompiled
        # Each shape is compiled by itself: what a step computes must not depend on the shapes seen before it.
        torch._dynamo.config.recompile_limit = MAX_COMPILED_SHAPES
        return torch.compile(self._loss, dynamic=False)

    def tensors(self) -> dict[str, Any]:
        """Everything that a checkpoint holds, by name; loading fills the tensors in place."""
        named = self.model.named_parameters()
        return {"model": weights(self.model), "optim": optimizer_tensors(named, self.optimizer)}

    def count(self, batch: TrainingBatch) -> Counts:
        return self.objective.count(batch)

    def backward(self, batch: TrainingBatch, targets: Sequence[int]) -> tuple[Tensor, float]:
        """Sum the step's gradients over all workers. `targets`: the number of each part of the loss, over all workers.

        Returns this worker's sum of each part, and the norm of the gradients.
        """
        # Dropout is the same when a step is repeated after a resume.
        torch.manual_seed(_seed(self.spec.seed, batch.step, self.worker.rank))
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
        if self._buffers:
            held = weights(self.model)
            self.strategy.share_buffers(held[name] for name in self._buffers)
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
    def evaluate(self, batch: TrainingBatch) -> list[float]:
        """The sum of each part of the plain loss over held-out rows, without dropout."""
        self.model.eval()
        sums = [0.0] * len(self.plain.parts)
        for inputs in self.plain.cut(batch, number=-(-len(batch.rows) // self.micro), size=self.micro):
            with self.autocast():
                parts_P = self.plain.loss(self.model, *(tensor.to(self.device.torch) for tensor in inputs))
            sums = [before + new for before, new in zip(sums, parts_P.tolist(), strict=True)]
        return sums

    def attention_extremes(self, rows: Tensor) -> list[tuple[float, float]]:
        """The largest and smallest attention score of each layer on these rows. Called by all workers."""
        assert self.family.attention_extremes is not None, "the spec refuses it"
        self.model.eval()
        with self.autocast():
            return self.family.attention_extremes(self.model, rows[:, :-1].to(self.device.torch))

    def sample(self, tokenizer: Tokenizer, end: int, settings: Settings) -> str:
        """A text of the model's own. Called by all workers."""
        self.model.eval()
        decoder = self.strategy.decoder(self.family)
        pieces = generate(self.model, self.spec.model, tokenizer, end, [""], settings, decoder=decoder)
        return "".join(piece.text for piece in pieces)

    @torch.no_grad()
    def parameter_statistics(self) -> dict[str, dict[str, float]]:
        """Mean and standard deviation of each trained parameter and its gradient. Called by all workers."""
        statistics = {}
        for name, p in self.model.named_parameters():
            if p.grad is None:
                continue  # not trained
            mean, std = self.strategy.mean_and_std(p)
            grad_mean, grad_std = self.strategy.mean_and_std(p.grad)
            statistics[name] = {
                "parameter_mean": mean,
                "parameter_std": std,
                "grad_mean": grad_mean,
                "grad_std": grad_std,
            }
        return statistics

    def autocast(self) -> AbstractContextManager[object]:
        if self.choices.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.torch.type, dtype=DTYPES[self.choices.precision])

    def _loss(self, *inputs: Tensor) -> Tensor:
        return self.objective.loss(self.model, *inputs)


def _seed(*parts: int) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
