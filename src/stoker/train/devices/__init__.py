"""Devices that a worker computes on: one file per kind, and the dict that names them."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import cast

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    torch: torch.device
    chip: str
    """The name that presets/chips.yaml knows it by."""
    backend: str
    """Of collectives, for init_process_group."""
    native_bf16: bool
    memory_bytes: int
    """All memory of this worker's device."""
    micro_tokens: int
    """Tokens in a micro-batch that keep this device busy."""
    compile_flops: float
    """For a run of fewer FLOPs, compiling takes longer than it saves."""
    peak_memory: Callable[[], int]
    """Largest number of bytes in use so far."""


DEVICES = {"cpu": "stoker.train.devices.cpu", "cuda": "stoker.train.devices.cuda"}


def device(kind: str, *, local_rank: int, local_world: int) -> Device:
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    return cast(Device, import_module(DEVICES[kind]).device(local_rank, local_world))
