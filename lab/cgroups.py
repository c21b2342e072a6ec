"""The branch of the cgroup tree that the nodes' pods live in."""

import os
from pathlib import Path

from lab.places import CGROUP

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ["cpu", "cpuset", "io", "memory", "pids"]


def make(name: str) -> str:
    """A node's own branch; gives its path below every root."""
    path = f"{CGROUP}/{name}"
    for root in _roots():
        (root / path).mkdir(parents=True, exist_ok=True)
        for parent in [root / CGROUP, root / path]:
            _fill(parent)
    return f"/{path}"


def remove() -> None:
    for root in _roots():
        for folder, _, _ in os.walk(root / CGROUP, topdown=False):
            Path(folder).rmdir()


def left() -> list[Path]:
    return [root / CGROUP for root in _roots() if (root / CGROUP).exists()]


def _roots() -> list[Path]:
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [path for path in ROOT.iterdir() if path.is_dir() and (path / "cgroup.procs").exists()]


def _fill(folder: Path) -> None:
    """In the old tree a cpuset starts empty and takes no process; in the new one a branch has no controllers yet."""
    for name in ["cpuset.cpus", "cpuset.mems"]:
        if (folder / name).exists() and not (folder / name).read_text().strip():
            (folder / name).write_text((folder.parent / name).read_text())
    if (folder / "cgroup.subtree_control").exists():
        there = set((folder.parent / "cgroup.controllers").read_text().split())
        for parent in [folder.parent, folder]:
            wanted = " ".join(f"+{one}" for one in CONTROLLERS if one in there)
            (parent / "cgroup.subtree_control").write_text(wanted)
