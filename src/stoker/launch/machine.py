"""What this machine has, seen without torch."""

import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from stoker.launch.backend import Facts
from stoker.spec.host import memory


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
    """Those this process may use: a container's share is often less than the machine's."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def gpus() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs, whether or not torch can use them."""
    return query("name") or _from_the_driver()


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
    """Of the smallest GPU that may be used; nvidia-smi counts in MiB."""
    sizes = [int(number) << 20 for words in visible(query("memory.total")) if (number := words.split()[0]).isdigit()]
    return min(sizes, default=None)


def _from_the_driver() -> tuple[str, ...]:
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        found.append(lines.get("Model", "NVIDIA GPU").strip())
    return tuple(found)


def visible(names: tuple[str, ...]) -> tuple[str, ...]:
    """nvidia-smi shows all GPUs; CUDA_VISIBLE_DEVICES says which of them a process may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return names
    words = [word.strip() for word in chosen.split(",") if word.strip() not in ("", "-1")]
    if all(word.isdigit() for word in words):
        return tuple(names[int(word)] for word in words if int(word) < len(names))
    return names[: len(words)]  # GPU-<uuid> words: which they are does not matter, how many does
