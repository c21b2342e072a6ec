"""Numbers derived from a spec, computed once: printed by the CLI and used by the trainer."""

import math
from dataclasses import dataclass

from stoker.spec.run import Optim, RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    steps: int | None
    """Optimizer steps until the run is done; None when only a time limit ends it."""
    positions: int | None
    """Samples in total; the last step of a run limited by epochs may be short."""
    tokens_per_step: int
    warmup: int
    decay: int
    horizon: int


def derive(spec: RunSpec, *, samples: int, horizon: int | None = None, step: int = 0, drawn: int = 0) -> Derived:
    """`samples`: of one epoch. For a resumed run: its horizon, its step, and the samples it has used (`drawn`)."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortSchedule:
    """A learning-rate schedule that ends before the run does."""

    end: int
    """The step at which it ends."""
    rate: float
    """The learning rate after that."""
    steps: int | None
    """Planned; None when only a time limit ends the run."""
    horizon: int

    def __str__(self) -> str:
        at = f"step {self.end:,}" + (f" of {self.steps:,}" if self.steps else "")
        effect = "later steps change nothing" if self.rate == 0 else "later steps train at that rate"
        if self.end != self.horizon:  # because of optim.decay
            return f"the learning rate is {self.rate:.3g} from {at} on: {effect}. A longer optim.decay extends it"
        wanted = f"optim.horizon={self.steps}" if self.steps else "A larger optim.horizon"
        return f"the learning rate is {self.rate:.3g} from {at} on: {effect}. {wanted} extends the schedule"


def short_schedule(optim: Optim, derived: Derived, *, updates: int = 0) -> ShortSchedule | None:
    """None when the schedule lasts as long as the run, as far as is known after `updates` updates."""
    if optim.schedule == "constant" or not derived.horizon:
        return None
    end = derived.horizon if optim.schedule == "wsd" else derived.warmup + derived.decay
    if end < derived.horizon and optim.floor:  # as configured: a decay, and then the floor
        return None
    if (updates < end) if derived.steps is None else (derived.steps <= end):
        return None
    return ShortSchedule(end=end, rate=optim.lr * optim.floor, steps=derived.steps, horizon=derived.horizon)


def _steps(amount: int | float, horizon: int) -> int:
    return amount if isinstance(amount, int) else round(amount * horizon)


def share(sequences: int, *, rank: int, world: int) -> range:
    """Which of a step's sequences a rank gets: contiguous, and shares differ by at most one."""
    base, extra = divmod(sequences, world)
    start = rank * base + min(rank, extra)
    return range(start, start + base + (rank < extra))


def micro_batches(sequences: int, *, world: int, max_size: int) -> tuple[int, int]:
    """(count, size) of a rank's micro-batches: at most `max_size`, as equal as possible, the same on every rank."""
    largest = len(share(sequences, rank=0, world=world))
    number = math.ceil(largest / max_size)
    return number, math.ceil(largest / number)
