"""What hardware can do, by `presets/chips.yaml` and `presets/instances.yaml`: peak FLOP/s, and cloud instance types."""

import difflib
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from stoker.spec.document import read_document
from stoker.spec.presets import FOLDER
from stoker.spec.units import size

Arithmetic = Literal["bf16", "fp16", "fp32", "tf32"]


def peak_flops(device_name: str, arithmetic: Arithmetic) -> float | None:
    """Peak dense FLOP/s of the device that torch.cuda.get_device_name() returns: the denominator of MFU.

    `tf32` is fp32 on tensor cores. None for a chip that is not listed: a guess would mislead.
    """
    name = device_name.removeprefix("NVIDIA ").removeprefix("Tesla ").strip()
    return _chips().get(name, {}).get(arithmetic)


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceType:
    """One machine of a type."""

    cloud: str
    cores: int
    memory: int
    gpus: int = 0
    gpu_memory: int | None = None
    """Of one GPU, in bytes."""
    efa: int = 0
    rdma: bool = False
    """Its EFA devices have direct access to accelerator memory."""
    neuron: int = 0
    neuron_cores: int = 0


def instance_type(name: str) -> InstanceType | None:
    """None for a type that is not listed."""
    values = instance_table()["instances"].get(name)
    return _instance(values) if values else None


def nearest_instance_type(name: str) -> str | None:
    matches = difflib.get_close_matches(name, instance_table()["instances"], n=1, cutoff=0.6)
    return matches[0] if matches else None


@cache
def instance_table() -> dict[str, Any]:
    return read_document(FOLDER / "instances.yaml").values


@cache
def _chips() -> dict[str, dict[str, float]]:
    chips = read_document(FOLDER / "chips.yaml").values["chips"]
    return {
        name: {arithmetic: float(chip[arithmetic]) * 1e12 for arithmetic in chip if arithmetic != "names"}
        for chip in chips
        for name in chip["names"]
    }


def _instance(values: dict[str, Any]) -> InstanceType:
    numbers: dict[str, Any] = {key: size(values[key]) for key in ("memory", "gpu_memory") if key in values}
    return InstanceType(**(values | numbers))
