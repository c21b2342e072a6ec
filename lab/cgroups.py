"""The branch of the cgroup tree that the nodes' pods live in."""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from lab.places import CGROUP, STATE

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = {"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}  # kubelet wants those that the root has
HANDED_DOWN = "cgroup.subtree_control"
BEFORE = STATE / "controllers"
"""What the root of the new tree handed down before there was a lab."""
PATIENCE_S = 60


def lacks() -> str | None:
    """Why there can be no branch, in a few words; None if there can."""
    roots = _roots()
    if not roots or not all(os.access(root, os.W_OK) for root in roots):
        return f"nothing can be written to {ROOT}"
    if _is_new() and (missing := _missing(ROOT)) and _is_inner(ROOT):
        return f"this is a container whose cgroup cannot hand down {', '.join(sorted(missing))}"
    return None


def make(names: Iterable[str]) -> None:
    """A branch for each node."""
    if _is_new():
        BEFORE.write_text((ROOT / HANDED_DOWN).read_text())
        _hand_down(ROOT)
    for root in _roots():
        for branch in [root / CGROUP, *(root / CGROUP / name for name in names)]:
            branch.mkdir(exist_ok=True)
            _fill(branch)


def path(name: str) -> str:
    """A node's own branch, below every root."""
    return f"/{CGROUP}/{name}"


def remove() -> None:
    for root in _roots():
        _remove(root / CGROUP)
    if BEFORE.exists():
        for one in _words(ROOT / HANDED_DOWN) - _words(BEFORE):
            with contextlib.suppress(OSError):  # somebody else uses it by now
                (ROOT / HANDED_DOWN).write_text(f"-{one}")
        BEFORE.unlink()


def _remove(branch: Path) -> None:
    """The kernel may take a while over processes that were killed, and holds their branch until then."""
    deadline = time.monotonic() + PATIENCE_S
    while branch.exists():
        try:
            for folder, _, _ in os.walk(branch, topdown=False):
                Path(folder).rmdir()
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the cgroup {error.filename} cannot be removed: {error.strerror}") from error
            time.sleep(0.05)


def _is_new() -> bool:
    """Whether there is one tree for all controllers (v2), not one for each (v1)."""
    return (ROOT / "cgroup.controllers").exists()


def _roots() -> list[Path]:
    if _is_new():
        return [ROOT]
    return [file.parent for file in ROOT.glob("*/cgroup.procs")]


def _is_inner(folder: Path) -> bool:
    """Only the root of all may have processes of its own and hand controllers down too; it alone has no type."""
    return (folder / "cgroup.type").exists() and bool((folder / "cgroup.procs").read_text().strip())


def _fill(branch: Path) -> None:
    """In the old tree a cpuset starts empty and takes no process; in the new one a branch hands nothing down yet."""
    for name in ["cpuset.cpus", "cpuset.mems"]:
        if (branch / name).exists() and not (branch / name).read_text().strip():
            (branch / name).write_text((branch.parent / name).read_text())
    if _is_new():
        _hand_down(branch)


def _hand_down(folder: Path) -> None:
    if missing := _missing(folder):
        (folder / HANDED_DOWN).write_text(" ".join(f"+{one}" for one in sorted(missing)))


def _missing(folder: Path) -> set[str]:
    return CONTROLLERS & _words(folder / "cgroup.controllers") - _words(folder / HANDED_DOWN)


def _words(file: Path) -> set[str]:
    return set(file.read_text().split())
