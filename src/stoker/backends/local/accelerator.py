"""The GPU, or the Neuron cores, that a worker computes on."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    index: str
    """For Neuron, all cores of the worker: `0-3`."""
    uuid: str
    use: float | None
    """Percent of the time that it was busy."""
    memory: int | None
    """Bytes in use, by all processes."""
    memory_total: int | None
