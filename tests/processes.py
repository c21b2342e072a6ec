"""What the system knows of a process."""

from contextlib import suppress
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Its first thread may be gone while others still hold what it had open, such as a lock."""
    try:
        ended = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        return not ended or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """All processes below one, nearest first."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            for child in task.read_text().split():
                found += [int(child), *descendants(int(child))]
    return found
