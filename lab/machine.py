"""Whether this machine can run the lab."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from lab import cgroups, network, packages
from lab.places import CACHE, STATE

PYTHON = (3, 11)  # as in Debian bookworm: the base image uses the packages of the Python that runs the lab
NEEDED_GIB = {"build": 20, "run": 6}
MEMORY_GIB = 6


def unsupported(*, built: bool) -> str | None:
    """Return why this machine cannot run the lab, or None."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the lab needs Linux on x86_64"
    if sys.version_info[:2] != PYTHON:
        return f"the lab needs Python {PYTHON[0]}.{PYTHON[1]}, as in its base image"
    if not shutil.which("apt-get"):
        return "the lab needs Debian"
    if os.geteuid() != 0:
        names = packages.missing()
        return "the lab needs root" + (f", and the Debian packages {' '.join(names)}" if names else "")
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true"]
    if subprocess.run(unshare, capture_output=True).returncode:
        return "cannot create namespaces on this machine"
    return network.unsupported() or cgroups.unsupported() or _missing_space(built)


def _missing_space(built: bool) -> str | None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if memory < MEMORY_GIB:
        return f"the lab needs {MEMORY_GIB} GiB of memory, this machine has {memory:.1f}"
    needed = NEEDED_GIB["run" if built else "build"]
    for place in [STATE, CACHE]:
        free = shutil.disk_usage(_existing(place)).free / 2**30
        if free < needed:
            return f"the lab needs {needed} GiB of disk below {place}, {free:.0f} GiB are free"
    return None


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
