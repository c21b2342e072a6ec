"""What a spec leaves open, decided once at the start of a run and kept in its checkpoints."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from stoker.spec import sizes
from stoker.spec.host import lacks_compiler
from stoker.spec.run import RunSpec
from stoker.train.devices import Device

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SORTED = 2  # rows of like length go together: of two micro-batches in place of one, the first leaves out much padding
ROOM = 0.8  # of the memory: the rest is the allocator's, the collectives' and the neighbours'


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    precision: Precision
    compile: bool
    micro: int
    """Sequences a worker runs at once, at most."""

    def keep(self, before: "Choices", *, micro: bool) -> "Choices":
        """What was chosen when the run began still holds, as far as this machine can do it.

        `micro`: that of the micro-batch too. Not with another number of workers, and not where the run file names it.
        """
        return Choices(
            precision=before.precision,
            compile=before.compile and lacks_compiler() is None,
            micro=min(before.micro, self.micro) if micro else self.micro,
        )


def choose(
    spec: RunSpec, device: Device, *, steps: int | None, parameters: int, held: int = 0
) -> tuple[Choices, list[str]]:
    """The choices, and a word to the user where one of them is less than he might hope for.

    `parameters` are those that the model has and trains, `held` those of its teacher.
    """
    precision = spec.precision
    if precision == "auto":
        precision = "bf16" if device.native_bf16 else "fp32"
    micro = largest_micro_batch(spec, device, precision, parameters=parameters, held=held)
    lacking = lacks_compiler() if spec.compile else None
    compiled = spec.compile is True or (spec.compile == "auto" and _pays(spec, device, steps, parameters))
    notes = [f"training runs without compile: {lacking}"] if lacking else []
    return Choices(precision=precision, compile=compiled and not lacking, micro=micro), notes


def agreed(mine: Choices) -> Choices:
    """What every worker can do: their machines need not be alike."""
    told = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return Choices(
        precision=mine.precision if len({one.precision for one in told}) == 1 else "fp32",
        compile=all(one.compile for one in told),
        micro=min(one.micro for one in told),
    )


def largest_micro_batch(spec: RunSpec, device: Device, precision: Precision, *, parameters: int, held: int = 0) -> int:
    if spec.batch.micro:
        return spec.batch.micro
    tokens = device.micro_tokens // (SORTED if spec.model.masked else 1)
    busy = max(1, tokens // spec.batch.length)
    room = ROOM * device.memory_bytes - sizes.state_bytes(parameters).total - sizes.FP32 * held
    fits = int(room // sizes.activation_bytes(spec.model, vocabulary(spec), spec.batch.length, precision))
    return max(1, min(busy, fits))


def _pays(spec: RunSpec, device: Device, steps: int | None, parameters: int) -> bool:
    if steps is None:
        return True
    tokens = steps * spec.batch.sequences * spec.batch.length
    each = sizes.flops_per_token(spec.model, vocabulary(spec), spec.batch.length, counted=parameters)
    return tokens * each > device.compile_flops


def vocabulary(spec: RunSpec) -> int:
    assert spec.model.vocab is not None, "the launcher fills it from the tokenizer"
    return spec.model.vocab
