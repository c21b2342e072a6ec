"""Whether this machine can run the lab."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from lab import cgroups, network, packages
from lab.places import CACHE, STATE

PYTHON = (3, 11)  # Debian bookworm's: the base image borrows the packages of the Python that runs the lab
NEEDED_GIB = {"build": 20, "run": 6}
MEMORY_GIB = 6


def lacks(*, built: bool) -> str | None:
    """Why it cannot, in a few words; None if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the lab needs Linux on x86_64"
    if sys.version_info[:2] != PYTHON:
        return f"the lab needs Python {PYTHON[0]}.{PYTHON[1]}, as in its base image"
    if not shutil.which("apt-get"):
        return "the lab needs Debian"
    if os.geteuid() != 0:
        names = packages.missing()
        return "the lab needs root" + (f", and the Debian packages {' '.join(names)}" if names else "")
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true"]
    if subprocess.run(apart, capture_output=True).returncode:
        return "this machine gives no namespaces"
    return network.lacks() or cgroups.lacks() or _room(built)


def _room(built: bool) -> str | None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if memory < MEMORY_GIB:
        return f"the lab needs {MEMORY_GIB} GiB of memory, here are {memory:.1f}"
    needed = NEEDED_GIB["run" if built else "build"]
    for place in [STATE, CACHE]:
        free = shutil.disk_usage(_there(place)).free / 2**30
        if free < needed:
            return f"the lab needs {needed} GiB of disk below {place}, {free:.0f} are free"
    return None


def _there(path: Path) -> Path:
    return path if path.exists() else _there(path.parent)
