"""Processes, as /proc shows them."""

import ipaddress
import os
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"  # in /proc/net/tcp


def is_alive(pid: int) -> bool:
    """Whether any thread lives: the first may have ended while others keep files open, such as a lock."""
    try:
        ended = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        return not ended or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """All descendants of a process, each before its own children."""
    pids = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            for child in task.read_text().split():
                pids += [int(child), *descendants(int(child))]
    return pids


def listening(*pids: int) -> set[str]:
    """The addresses on which these processes listen for TCP connections."""
    inodes = {link for pid in pids for link in _open_files(pid)}
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in inodes:
                addresses.add(_address(fields[1].split(":")[0]))
    return addresses


def _open_files(pid: int) -> list[str]:
    links = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(os.readlink(file))
    return links


def _address(digits: str) -> str:
    """`0100007F` is 127.0.0.1: each group of four bytes is in the byte order of the machine."""
    groups = (bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    return str(ipaddress.ip_address(b"".join(groups)))
