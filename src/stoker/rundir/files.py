"""Lines of files that grow, and files that are replaced or appended to without a torn state.

A run directory may have been copied, downloaded or written by another user: no line takes more memory than a limit, and
links are not followed.
"""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stoker.spec.files import open_writable

MAX_LINE_BYTES = 1 << 20
FIRST_BLOCK_BYTES = 8 * 1024  # of the first read at the end of a file; each further one is twice as large
MAX_BLOCK_BYTES = 1024 * 1024


def lines_forward(file: BinaryIO, *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """The lines from the current position, with their newlines; of a line longer than `max_bytes` the first part."""
    while line := file.readline(max_bytes + 1):
        yield line
        while len(line) > max_bytes and not line.endswith(b"\n"):
            line = file.readline(max_bytes + 1)


def lines_backwards(file: BinaryIO, end: int, *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """The lines before position `end`, last line first, with their newlines; the last line may not have one yet.

    Of a line longer than `max_bytes` the last `max_bytes` + 1 bytes are returned.
    """
    position, block, head, newline = end, FIRST_BLOCK_BYTES, b"", b""
    while position > 0:
        size = min(block, position)
        position -= size
        block = min(2 * block, MAX_BLOCK_BYTES)
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
    """Readers see the old text or the new, never a part, and never an empty file after a power cut."""
    writer = f"{socket.gethostname()}.{os.getpid()}.{threading.get_native_id()}"  # pods have the same process ids
    temporary = path.with_name(f".{path.name}.{writer}")
    try:
        with open(open_writable(temporary, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def append(path: Path, line: bytes) -> None:
    """Appends a line in one write: a kill leaves the whole line, or a torn one that readers skip."""
    descriptor = open_writable(path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # the last writer died in the middle of a line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)
