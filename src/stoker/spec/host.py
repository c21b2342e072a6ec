"""What of a machine decides how a run is trained there: one answer for `stoker check` and the workers."""

import os
import shutil
import sysconfig
from pathlib import Path

NATIVE_BF16 = ("amx_bf16", "avx512_bf16")


def memory() -> int:
    """Bytes that this process may use: a container's share is often less than the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return total if limit == "max" else min(total, int(limit))


def lacks_compiler() -> str | None:
    """Why torch.compile cannot work here, or None."""
    compiler = os.environ.get("CXX", "g++")  # the one that torch calls, and no other
    if shutil.which(compiler) is None:
        return f"the C++ compiler {compiler} is not installed"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's C headers are not installed"
    return None


def native_bf16() -> list[str]:
    """How the CPU multiplies bf16 by itself; empty when it cannot."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "").split()
    return [flag for flag in NATIVE_BF16 if flag in flags]
