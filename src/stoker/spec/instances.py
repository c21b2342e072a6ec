"""What instance types offer and need, as `presets/instances.yaml` has it."""

import difflib
from dataclasses import dataclass
from functools import cache
from typing import Any

from stoker.spec.document import read_document
from stoker.spec.presets import FOLDER
from stoker.spec.units import size


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """One machine of that type."""

    cloud: str
    cores: int
    memory: int
    gpus: int = 0
    gpu_memory: int | None = None
    """Of one GPU."""
    efa: int = 0
    rdma: bool = False
    """Its EFA devices reach into the memory of its accelerators."""
    neuron: int = 0
    neuron_cores: int = 0


def instance(name: str) -> Instance | None:
    """None for a type that is not listed."""
    found = table()["instances"].get(name)
    return _made(found) if found else None


def nearest(name: str) -> str | None:
    found = difflib.get_close_matches(name, table()["instances"], n=1, cutoff=0.6)
    return found[0] if found else None


@cache
def table() -> dict[str, Any]:
    return read_document(FOLDER / "instances.yaml").values


def _made(values: dict[str, Any]) -> Instance:
    numbers: dict[str, Any] = {key: size(values[key]) for key in ("memory", "gpu_memory") if key in values}
    return Instance(**(values | numbers))
