"""What the system knows of a process."""

import ipaddress
import os
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"  # in /proc/net/tcp


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


def listening(*pids: int) -> set[str]:
    """The addresses on which these processes listen for TCP connections."""
    inodes = {link for pid in pids for link in _open_files(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS and f"socket:[{words[9]}]" in inodes:
                found.add(_address(words[1].split(":")[0]))
    return found


def _open_files(pid: int) -> list[str]:
    links = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(os.readlink(file))
    return links


def _address(digits: str) -> str:
    """`0100007F`: each group of four bytes as the machine keeps it."""
    groups = (bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    return str(ipaddress.ip_address(b"".join(groups)))
