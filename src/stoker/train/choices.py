"""Precision, compile and micro-batch where the spec leaves them open: chosen once per run, kept in its checkpoints."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from stoker.spec import estimate
from stoker.spec.host import missing_compiler
from stoker.spec.run import RunSpec
from stoker.train.devices import Device
from stoker.train.parallel import Parallel

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MIN_MASKED_MICRO_BATCHES = 2  # rows are sorted by length: the first of several micro-batches has much less padding
USABLE_MEMORY = 0.8  # share; the rest is for the allocator, the collectives and other processes


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    precision: Precision
    compile: bool
    micro: int
    """Sequences a worker runs at once, at most."""

    def keep(self, before: "Choices", *, micro: bool) -> "Choices":
        """Keep what was chosen when the run started, as far as this machine supports it.

        `micro`: keep the micro-batch too. Not with another number of workers, nor where the run file sets it.
        """
        return Choices(
            precision=before.precision,
            compile=before.compile and missing_compiler() is None,
            micro=min(before.micro, self.micro) if micro else self.micro,
        )


def choose(
    spec: RunSpec, device: Device, parallel: Parallel, *, steps: int | None, parameters: int, teacher: int = 0
) -> tuple[Choices, list[str]]:
    """The choices, and a note for the user where a choice is worse than expected.

    `parameters` is the number that the model trains, `teacher` the number that its teacher has.
    """
    precision = spec.precision
    if precision == "auto":
        precision = "bf16" if device.native_bf16 else "fp32"
    state = estimate.state_bytes(parallel.held(parameters)).total + estimate.FP32 * teacher
    micro = largest_micro_batch(spec, device, precision, state_bytes=state)
    no_compiler = missing_compiler() if spec.compile else None
    compiled = spec.compile is True or (spec.compile == "auto" and _pays(spec, device, steps, parameters))
    notes = [f"training runs without compile: {no_compiler}"] if no_compiler else []
    return Choices(precision=precision, compile=compiled and not no_compiler, micro=micro), notes


def agreed(own: Choices) -> Choices:
    """Choices that every worker supports: their machines may differ."""
    choices = [own] * dist.get_world_size()
    dist.all_gather_object(choices, own)
    return Choices(
        precision=own.precision if len({choice.precision for choice in choices}) == 1 else "fp32",
        compile=all(choice.compile for choice in choices),
        micro=min(choice.micro for choice in choices),
    )


def largest_micro_batch(spec: RunSpec, device: Device, precision: Precision, *, state_bytes: int) -> int:
    """Sequences that keep the device busy, or as many as fit beside `state_bytes` of weights and optimizer."""
    if spec.batch.micro:
        return spec.batch.micro
    tokens = device.micro_tokens // (MIN_MASKED_MICRO_BATCHES if spec.model.masked else 1)
    busy = max(1, tokens // spec.batch.length)
    free_bytes = USABLE_MEMORY * device.memory_bytes - state_bytes
    fits = int(free_bytes // estimate.activation_bytes(spec.model, vocabulary(spec), spec.batch.length, precision))
    return max(1, min(busy, fits))


def _pays(spec: RunSpec, device: Device, steps: int | None, parameters: int) -> bool:
    if steps is None:
        return True
    tokens = steps * spec.batch.sequences * spec.batch.length
    flops = estimate.flops_per_token(spec.model, vocabulary(spec), spec.batch.length, counted=parameters)
    return tokens * flops > device.compile_flops


def vocabulary(spec: RunSpec) -> int:
    assert spec.model.vocab is not None, "the launcher fills it from the tokenizer"
    return spec.model.vocab
