"""What of a machine decides how a run is trained there: one answer for `stoker check` and the workers."""

import os
import shutil
import sysconfig
from pathlib import Path

NATIVE_BF16 = ("amx_bf16", "avx512_bf16")


def memory() -> int:
    """Bytes that this process may use: a container's share is often less than the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def cgroup_limits(mine: Path, root: Path) -> list[int]:
    """What the process's group may use, and every group around it; both versions of them."""
    files = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    for line in _text(mine).splitlines():
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
