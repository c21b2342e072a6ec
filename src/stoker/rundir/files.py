"""Files of a run directory: only regular files are opened, and no line takes more memory than a limit.

A run directory may have been copied, downloaded or written by somebody else. A FIFO in it would block its reader for
ever, a device could deliver without end, and a link may point anywhere.
"""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stoker.spec.errors import UserError

LINE_BYTES = 1 << 20
BLOCK = 8 * 1024  # bytes of the first read at the end of a file; each further one is twice as large
LARGEST_BLOCK = 1024 * 1024

_SAFE = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_NOT_OPENED = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link, a socket, a folder that should be written


class NotRegular(UserError, OSError):
    """A FIFO, a device, a socket, a folder or a link stands where a file should."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not a regular file", remedy="Remove it, or restore the file that was there")
        self.strerror = "not a regular file"


def open_regular(path: Path, *, root: Path | None = None) -> BinaryIO:
    """Open a file for reading without waiting for anything. `root`: no folder on the way from there may be a link."""
    folder = None
    try:
        if root is not None:
            folder = _walk(root, path)
        descriptor = os.open(path if folder is None else path.name, os.O_RDONLY | _SAFE, dir_fd=folder)
    except OSError as e:
        raise _reason(path, e) from e
    finally:
        if folder is not None:
            os.close(folder)
    return open(_checked(descriptor, path), "rb")


def open_writable(path: Path, flags: int) -> int:
    """A descriptor of a regular file that is created when it is missing; what a link points to is never written."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | _SAFE, 0o644)
    except OSError as e:
        raise _reason(path, e) from e
    return _checked(descriptor, path)


def read_regular(path: Path, *, max_bytes: int, root: Path | None = None) -> bytes:
    """All of a small file. A larger one is a ValueError."""
    with open_regular(path, root=root) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return data


def lines_forward(file: BinaryIO, *, max_bytes: int = LINE_BYTES) -> Iterator[bytes]:
    """The lines from the current position on, each with its newline; of a longer one the first `max_bytes` + 1."""
    while line := file.readline(max_bytes + 1):
        yield line
        while len(line) > max_bytes and not line.endswith(b"\n"):
            line = file.readline(max_bytes + 1)


def lines_backwards(file: BinaryIO, end: int, *, max_bytes: int = LINE_BYTES) -> Iterator[bytes]:
    """The lines before position `end`, last one first, each with its newline; a last one without has no end yet.

    Of a line that is longer than `max_bytes` the last `max_bytes` + 1 are given.
    """
    position, block, head, newline = end, BLOCK, b"", b""
    while position > 0:
        size = min(block, position)
        position -= size
        block = min(2 * block, LARGEST_BLOCK)
        file.seek(position)
        data = file.read(size)
        if len(head) > max_bytes and b"\n" not in data:
            continue
        head, *lines = (data + head).split(b"\n")
        for line in reversed(lines):
            if line or newline:
                yield line[-max_bytes - 1 :] + newline
            newline = b"\n"
        head = head[-max_bytes - 1 :]
    if head or newline:
        yield head + newline


def write_atomic(path: Path, text: str) -> None:
    """A reader sees the old text or the new, never half of it, and never an empty file after a power cut."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")  # pods have the same pids
    with open(open_writable(temporary, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def append(path: Path, line: bytes) -> None:
    """One write for one line: a kill leaves the whole line or a torn one that readers skip."""
    descriptor = open_writable(path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # the last writer died in the middle of a line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def _walk(root: Path, path: Path) -> int:
    """A descriptor of the folder that holds `path`."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.relative_to(root).parts[:-1]:
        above = folder
        try:
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        finally:
            os.close(above)
    return folder


def _checked(descriptor: int, path: Path) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NotRegular(path)


def _reason(path: Path, error: OSError) -> OSError:
    """A folder on the way that is a link, or anything else, is ENOTDIR."""
    no_folder = error.errno == errno.ENOTDIR and os.path.lexists(path.parent)
    return NotRegular(path) if no_folder or error.errno in _NOT_OPENED else error
