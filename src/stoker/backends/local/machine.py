"""What this machine has, seen without torch."""

import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from stoker.backends.backend import Facts
from stoker.spec.host import memory, usable_cores


def facts() -> Facts:
    torch = version("torch")
    usable = torch is not None and "+cpu" not in torch
    names = visible(gpus()) if usable else ()
    return Facts(cores=cores(), gpus=names, torch=torch, memory=memory(), gpu_memory=_gpu_memory() if names else None)


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """The cores that this process may use: a container often has fewer than the machine."""
    allowed = usable_cores()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def gpus() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs, whether or not torch can use them."""
    return query("name") or _gpus_of_driver()


def query(field: str) -> tuple[str, ...]:
    """One field of nvidia-smi for each GPU; empty when there is no nvidia-smi or it fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        answer = subprocess.run(
            [command, f"--query-gpu={field}", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip()) if answer.returncode == 0 else ()


def _gpu_memory() -> int | None:
    """Bytes of the smallest visible GPU; nvidia-smi counts in MiB."""
    sizes = [int(mib) << 20 for text in visible(query("memory.total")) if (mib := text.split()[0]).isdigit()]
    return min(sizes, default=None)


def _gpus_of_driver() -> tuple[str, ...]:
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        names.append(lines.get("Model", "NVIDIA GPU").strip())
    return tuple(names)


def visible(names: tuple[str, ...]) -> tuple[str, ...]:
    """nvidia-smi shows all GPUs; CUDA_VISIBLE_DEVICES says which of them a process may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return names
    devices = [device.strip() for device in chosen.split(",") if device.strip() not in ("", "-1")]
    if all(device.isdigit() for device in devices):
        return tuple(names[int(device)] for device in devices if int(device) < len(names))
    return names[: len(devices)]  # by UUID (GPU-…): only their number matters here
