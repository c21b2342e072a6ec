"""`stoker check`: what a run needs on this machine, and what would make it faster."""

import os
import platform
import shutil
import sys
from pathlib import Path

from stoker.backends.backend import CheckResult
from stoker.backends.local import machine
from stoker.spec.host import memory, missing_compiler, native_bf16

PACKAGES = ("torch", "numpy", "pyarrow", "tokenizers", "tensorboard")
GIB = 2**30
MIN_MEMORY = 2 * GIB
MIN_DISK = 2 * GIB
MIN_SHM = 64 * 2**20  # Docker's default; nccl and gloo pass tensors through it


def check(folder: Path) -> list[CheckResult]:
    """`folder` is where runs would be written."""
    return [
        _python(),
        *map(_package, PACKAGES),
        _compiler(),
        _cores(),
        _memory(),
        _disk(folder),
        _shm(),
        _gpu(),
        _bf16(),
    ]


def _python() -> CheckResult:
    return CheckResult(name="Python", ok=True, needed=True, detail=platform.python_version())


def _package(name: str) -> CheckResult:
    version = machine.version(name)
    remedy = "" if version else "Run: pip install 'stoker[train]'"
    return CheckResult(name=name, ok=version is not None, needed=True, detail=version or "not installed", remedy=remedy)


def _compiler() -> CheckResult:
    missing = missing_compiler()
    detail = f"{missing}: training runs without compile" if missing else "installed"
    remedy = "For more speed install g++ and Python's headers (python3-dev)" if missing else ""
    return CheckResult(name="compiler", ok=missing is None, needed=False, detail=detail, remedy=remedy)


def _cores() -> CheckResult:
    return CheckResult(name="cores", ok=True, needed=True, detail=str(machine.cores()))


def _memory() -> CheckResult:
    bytes = memory()
    enough = bytes >= MIN_MEMORY
    remedy = "" if enough else "Train small models only, with a low batch.micro"
    return CheckResult(name="memory", ok=enough, needed=False, detail=_gib(bytes), remedy=remedy)


def _disk(folder: Path) -> CheckResult:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    writable = os.access(existing, os.W_OK)
    free = shutil.disk_usage(existing).free
    detail = f"{_gib(free)} free in {existing}" if writable else f"{existing} cannot be written"
    enough = free >= MIN_DISK
    remedy = "" if writable and enough else "Choose another folder with --runs DIR, or free some space"
    return CheckResult(name="disk", ok=writable and enough, needed=not writable, detail=detail, remedy=remedy)


def _shm() -> CheckResult:
    folder = Path("/dev/shm")
    if not folder.is_dir() and sys.platform != "linux":
        return CheckResult(name="/dev/shm", ok=True, needed=False, detail=f"{platform.system()} needs none")
    bytes = shutil.disk_usage(folder).total if folder.is_dir() else 0
    enough = bytes >= MIN_SHM
    remedy = "" if enough else "Several GPU workers need more: in Docker add --shm-size=1g"
    return CheckResult(name="/dev/shm", ok=enough, needed=False, detail=_gib(bytes), remedy=remedy)


def _gpu() -> CheckResult:
    names = machine.gpus()
    if not names:
        return CheckResult(name="GPU", ok=True, needed=False, detail="none: training runs on the CPU")
    driver = machine.query("driver_version")
    detail = f"{len(names)} × {names[0]}" + (f", driver {driver[0]}" if driver else "")
    version = machine.version("torch")
    if version and "+cpu" in version:
        remedy = "Install the CUDA build of torch: see pytorch.org"
        return CheckResult(
            name="GPU", ok=False, needed=False, detail=f"{detail}, but torch {version} is for CPUs", remedy=remedy
        )
    return CheckResult(name="GPU", ok=True, needed=False, detail=detail)


def _bf16() -> CheckResult:
    detail = ", ".join(native_bf16()) or "not native on this CPU: it trains in fp32"
    return CheckResult(name="CPU bf16", ok=True, needed=False, detail=detail)


def _gib(bytes: int) -> str:
    return f"{bytes / GIB:.1f} GiB"
