"""The process tree of a benchmark."""

from pathlib import Path


def tree(pid: int) -> list[int]:
    """The process and all its descendants. A process that ends meanwhile is left out, with its own descendants."""
    pids = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += [descendant for child in children.read_text().split() for descendant in tree(int(child))]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pids
