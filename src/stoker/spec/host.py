"""Properties of this machine that decide how a run is trained: the same for `stoker check` and the workers."""

import os
import resource
import shutil
import sys
import sysconfig
from pathlib import Path

NATIVE_BF16 = ("amx_bf16", "avx512_bf16")


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def peak_memory() -> int:
    """The most bytes that this process has held so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory() -> int:
    """Bytes that this process may use: a container often has less than the machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def cgroup_limits(cgroup_file: Path, root: Path) -> list[int]:
    """The memory limits of the process's cgroup and of its parents, of both cgroup versions."""
    files = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    for line in _text(cgroup_file).splitlines():
        _, controllers, path = line.split(":", 2)
        top, name = (root, "memory.max") if not controllers else (root / "memory", "memory.limit_in_bytes")
        if not controllers or "memory" in controllers.split(","):
            inner = Path(path.lstrip("/"))
            files += [top / group / name for group in (inner, *inner.parents)]
    return [int(limit) for file in files if (limit := _text(file).strip()).isdigit()]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def missing_compiler() -> str | None:
    """Why torch.compile cannot work here, or None."""
    compiler = os.environ.get("CXX", "g++")  # the one that torch calls
    if shutil.which(compiler) is None:
        return f"the C++ compiler {compiler} is not installed"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's C headers are not installed"
    return None


def native_bf16() -> list[str]:
    """CPU features that multiply bf16 natively; empty when there are none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "").split()
    return [flag for flag in NATIVE_BF16 if flag in flags]
