"""What a worker computes on, as it is shown."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    index: str
    """Of Neuron, all the cores of a worker: `0-3`."""
    uuid: str
    use: float | None
    """Percent of the time that it was busy."""
    memory: int | None
    """Bytes in use, by whomever."""
    memory_total: int | None
