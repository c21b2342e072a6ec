"""One worker's log on the disk: every line stamped, rotated; a disk that is full costs lines, never the run."""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from stoker.rundir.files import open_writable

LIMIT = 64 * 2**20  # bytes after which a log is rotated
KEPT = 3  # rotated files


class LogFile:
    def __init__(self, path: Path, *, note: Callable[[str], None], limit: int = LIMIT) -> None:
        self._path = path
        self._note = note
        self._limit = limit
        self._descriptor: int | None = None
        self._size = 0
        self._torn = False  # the file ends in the middle of a line, when it is opened
        self._dropped = 0
        self._noted = False
        with suppress(OSError):  # told by the first write; a worker that says nothing has a log all the same
            self._descriptor = self._open()

    def write(self, lines: bytes) -> None:
        """Whole lines. Never raises: what cannot be written is dropped, and that is told."""
        gap = b"[stoker: %d bytes could not be written here]\n" % self._dropped if self._dropped else b""
        left = _stamped(gap + lines)
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            if self._size >= self._limit:
                self._descriptor = self._rotated(self._descriptor)
            if self._torn:
                left, self._torn = b"\n" + left, False
            while left:
                written = os.write(self._descriptor, left)
                self._size += written
                left = left[written:]
            self._dropped = 0
        except OSError as e:
            self._drop(len(lines), e)

    def close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = None

    def _open(self) -> int:
        self._path.parent.mkdir(exist_ok=True)
        descriptor = open_writable(self._path, os.O_RDWR | os.O_APPEND)
        self._size = os.fstat(descriptor).st_size
        self._torn = self._size > 0 and os.pread(descriptor, 1, self._size - 1) != b"\n"
        return descriptor

    def _rotated(self, descriptor: int) -> int:
        self._descriptor = None
        os.close(descriptor)
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, KEPT + 1))]
        for number in range(KEPT, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(names[number - 1], names[number])
        return self._open()

    def _drop(self, size: int, error: OSError) -> None:
        self._dropped += size
        self.close()  # opened anew by the next write: what stood in its way may be gone by then
        if not self._noted:
            self._noted = True
            self._note(f"{self._path.name} cannot be written ({error.strerror}): lines are missing in it")


def _stamped(lines: bytes) -> bytes:
    stamp = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3].encode() + b"Z "
    return stamp + lines[:-1].replace(b"\n", b"\n" + stamp) + b"\n"
