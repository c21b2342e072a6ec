"""What a worker computes on: one file a kind, and the dict that names them."""

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
    """Collectives: what init_process_group is told."""
    native_bf16: bool
    memory_bytes: int
    """What there is in all, for this worker."""
    micro_tokens: int
    """Tokens in a micro-batch that keep this kind of chip busy."""
    compile_flops: float
    """A run of fewer FLOPs ends before compiling has paid for itself."""
    peak_memory: Callable[[], int]
    """Bytes held at most so far."""


DEVICES = {"cpu": "stoker.train.devices.cpu", "cuda": "stoker.train.devices.cuda"}


def device(kind: str, *, local_rank: int, local_world: int) -> Device:
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    return cast(Device, import_module(DEVICES[kind]).device(local_rank, local_world))
