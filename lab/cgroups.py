"""The cgroups of the nodes and their pods."""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from lab.places import CGROUP, STATE

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = {"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}  # kubelet needs those that the root has
ENABLED = "cgroup.subtree_control"
BEFORE = STATE / "controllers"
"""The controllers that the cgroup v2 root had enabled before the lab started."""
REMOVE_TIMEOUT_S = 60


def unsupported() -> str | None:
    """Return why cgroups cannot be created, or None."""
    roots = _roots()
    if not roots or not all(os.access(root, os.W_OK) for root in roots):
        return f"{ROOT} is not writable"
    if _is_v2() and (missing := _missing(ROOT)) and _is_inner(ROOT):
        return f"this is a container whose cgroup cannot enable {', '.join(sorted(missing))}"
    return None


def make(names: Iterable[str]) -> None:
    """Create a cgroup for each node."""
    if _is_v2():
        BEFORE.write_text((ROOT / ENABLED).read_text())
        _enable(ROOT)
    for root in _roots():
        for group in [root / CGROUP, *(root / CGROUP / name for name in names)]:
            group.mkdir(exist_ok=True)
            _initialise(group)


def path(name: str) -> str:
    """The cgroup of a node, relative to every root."""
    return f"/{CGROUP}/{name}"


def remove() -> None:
    for root in _roots():
        _remove(root / CGROUP)
    if BEFORE.exists():
        for controller in _items(ROOT / ENABLED) - _items(BEFORE):
            with contextlib.suppress(OSError):  # in use by another process now
                (ROOT / ENABLED).write_text(f"-{controller}")
        BEFORE.unlink()


def _remove(group: Path) -> None:
    """Retry until the kernel has removed killed processes, which keep their cgroup busy."""
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while group.exists():
        try:
            for folder, _, _ in os.walk(group, topdown=False):
                Path(folder).rmdir()
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the cgroup {error.filename} cannot be removed: {error.strerror}") from error
            time.sleep(0.05)


def _is_v2() -> bool:
    """Whether this machine has cgroup v2 (one tree for all controllers), not v1 (one tree per controller)."""
    return (ROOT / "cgroup.controllers").exists()


def _roots() -> list[Path]:
    if _is_v2():
        return [ROOT]
    return [file.parent for file in ROOT.glob("*/cgroup.procs")]


def _is_inner(folder: Path) -> bool:
    """Whether this is a non-root cgroup with processes, which cannot enable controllers (a root has no cgroup.type)."""
    return (folder / "cgroup.type").exists() and bool((folder / "cgroup.procs").read_text().strip())


def _initialise(group: Path) -> None:
    """Initialise a cgroup. In v1 a new cpuset is empty and accepts no process; in v2 no controllers are enabled."""
    for name in ["cpuset.cpus", "cpuset.mems"]:
        if (group / name).exists() and not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())
    if _is_v2():
        _enable(group)


def _enable(folder: Path) -> None:
    if missing := _missing(folder):
        (folder / ENABLED).write_text(" ".join(f"+{controller}" for controller in sorted(missing)))


def _missing(folder: Path) -> set[str]:
    return CONTROLLERS & _items(folder / "cgroup.controllers") - _items(folder / ENABLED)


def _items(file: Path) -> set[str]:
    return set(file.read_text().split())
