"""The CPU: gloo, and bf16 where the cores multiply it natively."""

import torch

from stoker.spec.host import memory, native_bf16, peak_memory
from stoker.train.devices import Device


def device(_local_rank: int, local_world: int) -> Device:
    return Device(
        torch=torch.device("cpu"),
        chip="cpu",
        backend="gloo",
        native_bf16=bool(native_bf16()),
        memory_bytes=memory() // local_world,
        micro_tokens=4096,
        compile_flops=2e14,
        peak_memory=peak_memory,
    )
