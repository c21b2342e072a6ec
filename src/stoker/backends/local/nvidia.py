"""The NVIDIA GPUs of this machine, read with NVML."""

from collections.abc import Callable
from typing import TypeVar

import pynvml

from stoker.backends.local.accelerator import Accelerator

Value = TypeVar("Value")


def read_gpus() -> list[Accelerator]:
    """Empty where there is no GPU, or no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_read_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:  # such as a GPU that has fallen off the bus
        return []
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(index: int) -> Accelerator:
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    use = _supported(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu))
    # as nvidia-smi shows it: version 1 counts what the driver keeps for itself as used
    memory = _supported(lambda: pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2))
    return Accelerator(
        index=str(index),
        uuid=str(pynvml.nvmlDeviceGetUUID(device)),
        use=use,
        memory=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
    )


def _supported(read: Callable[[], Value]) -> Value | None:
    """None where the GPU does not report a value: one that is divided with MIG has no utilization."""
    try:
        return read()
    except pynvml.NVMLError:
        return None
