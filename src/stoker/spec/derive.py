"""The numbers that follow from a spec: computed once, here, printed by the CLI and used by the trainer."""

import math
from dataclasses import dataclass

from stoker.spec.run import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    steps: int | None
    """Optimizer steps until the run is done; None when only a time ends it."""
    positions: int | None
    """Samples drawn in all; the last step of an epoch-bound run may be short."""
    tokens_per_step: int
    warmup: int
    decay: int
    horizon: int


def derive(spec: RunSpec, *, samples: int, horizon: int | None = None, step: int = 0, drawn: int = 0) -> Derived:
    """`samples` are those of one epoch. Of a run that has begun: its horizon, its step, the samples it has drawn."""
    sequences, until = spec.batch.sequences, spec.until
    tokens_per_step = sequences * spec.batch.length
    ends = []  # in samples
    if until.steps:
        ends.append(drawn + (until.steps - step) * sequences)
    if until.tokens:
        left = until.tokens / spec.batch.length - drawn
        ends.append(drawn + math.ceil(left / sequences) * sequences)
    if until.epochs:
        ends.append(until.epochs * samples)
    positions = min(ends) if ends else None
    steps = step + math.ceil(max(0, positions - drawn) / sequences) if positions is not None else None
    horizon = spec.optim.horizon or horizon or steps or 0
    warmup = _steps(spec.optim.warmup, horizon)
    if spec.optim.decay is not None:
        decay = _steps(spec.optim.decay, horizon)
    elif spec.optim.schedule == "wsd":
        decay = round(0.2 * horizon)
    else:
        decay = horizon - warmup
    return Derived(
        steps=steps,
        positions=positions,
        tokens_per_step=tokens_per_step,
        warmup=warmup,
        decay=max(1, decay),
        horizon=horizon,
    )


def _steps(amount: int | float, horizon: int) -> int:
    return amount if isinstance(amount, int) else round(amount * horizon)


def share(sequences: int, *, rank: int, world: int) -> range:
    """Which of a step's sequences a rank takes: contiguous, and shares differ by at most one."""
    base, extra = divmod(sequences, world)
    start = rank * base + min(rank, extra)
    return range(start, start + base + (rank < extra))


def micro_batches(sequences: int, *, world: int, most: int) -> tuple[int, int]:
    """(count, size) of a rank's micro-batches: no larger than `most`, as equal as they can be, alike on every rank."""
    largest = len(share(sequences, rank=0, world=world))
    number = math.ceil(largest / most)
    return number, math.ceil(largest / number)
