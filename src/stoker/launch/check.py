"""What a run needs of this machine, and what would make it better."""

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from stoker.launch import machine
from stoker.spec.host import lacks_compiler, memory, native_bf16

PARTS = ("torch", "numpy", "pyarrow", "tokenizers", "tensorboard")
GIB = 2**30
LEAST_MEMORY = 2 * GIB
LEAST_DISK = 2 * GIB
LEAST_SHARED = 64 * 2**20  # Docker's default; nccl and gloo pass tensors through it


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    name: str
    ok: bool
    needed: bool
    """Without it no run can be trained here."""
    found: str
    remedy: str = ""


def check(folder: Path) -> list[Finding]:
    """`folder` is where runs would be written."""
    return [_python(), *map(_part, PARTS), _compiler(), _cores(), _memory(), _disk(folder), _shared(), _gpu(), _bf16()]


def _python() -> Finding:
    return Finding(name="Python", ok=True, needed=True, found=platform.python_version())


def _part(name: str) -> Finding:
    version = machine.version(name)
    remedy = "" if version else "Run: pip install 'stoker[train]'"
    return Finding(name=name, ok=version is not None, needed=True, found=version or "not installed", remedy=remedy)


def _compiler() -> Finding:
    lacking = lacks_compiler()
    found = f"{lacking}: training runs without compile" if lacking else "there"
    remedy = "For more speed install g++ and Python's headers (python3-dev)" if lacking else ""
    return Finding(name="compiler", ok=lacking is None, needed=False, found=found, remedy=remedy)


def _cores() -> Finding:
    return Finding(name="cores", ok=True, needed=True, found=str(machine.cores()))


def _memory() -> Finding:
    bytes = memory()
    enough = bytes >= LEAST_MEMORY
    remedy = "" if enough else "Small models only: lower batch.micro"
    return Finding(name="memory", ok=enough, needed=False, found=_gib(bytes), remedy=remedy)


def _disk(folder: Path) -> Finding:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    writable = os.access(existing, os.W_OK)
    free = shutil.disk_usage(existing).free
    found = f"{_gib(free)} free in {existing}" if writable else f"{existing} cannot be written"
    enough = free >= LEAST_DISK
    remedy = "" if writable and enough else "Choose another folder with --runs DIR, or make room"
    return Finding(name="disk", ok=writable and enough, needed=not writable, found=found, remedy=remedy)


def _shared() -> Finding:
    place = Path("/dev/shm")
    bytes = shutil.disk_usage(place).total if place.is_dir() else 0
    enough = bytes >= LEAST_SHARED
    remedy = "" if enough else "Several GPU workers need more: in Docker add --shm-size=1g"
    return Finding(name="/dev/shm", ok=enough, needed=False, found=_gib(bytes), remedy=remedy)


def _gpu() -> Finding:
    names = machine.gpus()
    if not names:
        return Finding(name="GPU", ok=True, needed=False, found="none: training runs on the CPU")
    driver = machine.query("driver_version")
    found = f"{len(names)} × {names[0]}" + (f", driver {driver[0]}" if driver else "")
    version = machine.version("torch")
    if version and "+cpu" in version:
        remedy = "Install the CUDA build of torch: see pytorch.org"
        return Finding(
            name="GPU", ok=False, needed=False, found=f"{found}, but torch {version} is for CPUs", remedy=remedy
        )
    return Finding(name="GPU", ok=True, needed=False, found=found)


def _bf16() -> Finding:
    found = ", ".join(native_bf16()) or "not native on this CPU: it trains in fp32"
    return Finding(name="CPU bf16", ok=True, needed=False, found=found)


def _gib(bytes: int) -> str:
    return f"{bytes / GIB:.1f} GiB"
