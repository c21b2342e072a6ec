"""What NVML reports about GPUs. A machine without one gets an empty list."""

from types import SimpleNamespace

import pynvml
import pytest

from stoker.backends.local import nvidia
from stoker.backends.local.accelerator import Accelerator


def not_supported(_: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one reports neither its utilization nor its memory."""
    memory = SimpleNamespace(used=2**30, total=143771 * 2**20)
    uses = [lambda: SimpleNamespace(gpu=37), lambda: not_supported(None)]
    sizes = [lambda: memory, lambda: not_supported(None)]
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda index: ("GPU-3c0b7d11", "GPU-99")[index])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda index: uses[index]())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda index, version: sizes[index]() if version else None)


@pytest.mark.usefixtures("two_gpus")
def test_what_a_gpu_does_not_report_is_none() -> None:
    assert nvidia.read_gpus() == [
        Accelerator(index="0", uuid="GPU-3c0b7d11", use=37.0, memory=2**30, memory_total=143771 * 2**20),
        Accelerator(index="1", uuid="GPU-99", use=None, memory=None, memory_total=None),
    ]


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_lost_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", not_supported)
    assert nvidia.read_gpus() == []


def test_a_machine_without_the_nvidia_library_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert nvidia.read_gpus() == []
