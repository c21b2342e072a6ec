"""The log file of one worker: every line has a timestamp, and the file is rotated."""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from stoker.spec.files import open_writable

MAX_BYTES = 64 * 2**20  # of a log, before it is rotated
ROTATED_FILES = 3


class LogFile:
    """A full disk costs lines of the log, never the run."""

    def __init__(self, path: Path, *, note: Callable[[str], None], max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._note = note
        self._max_bytes = max_bytes
        self._descriptor: int | None = None
        self._size = 0
        self._ends_in_partial_line = False
        self._dropped_bytes = 0
        self._noted = False
        with suppress(OSError):  # the first write reports it; a worker that prints nothing has a log too
            self._descriptor = self._open()

    def write(self, lines: bytes) -> None:
        """Writes whole lines. Never raises: it drops lines that cannot be written, and logs later how many bytes."""
        gap = b"[stoker: %d bytes could not be written here]\n" % self._dropped_bytes if self._dropped_bytes else b""
        left = _with_timestamps(gap + lines)
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            if self._size >= self._max_bytes:
                self._descriptor = self._rotate(self._descriptor)
            if self._ends_in_partial_line:
                left, self._ends_in_partial_line = b"\n" + left, False
            while left:
                written = os.write(self._descriptor, left)
                self._size += written
                left = left[written:]
            self._dropped_bytes = 0
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
        self._ends_in_partial_line = self._size > 0 and os.pread(descriptor, 1, self._size - 1) != b"\n"
        return descriptor

    def _rotate(self, descriptor: int) -> int:
        self._descriptor = None
        os.close(descriptor)
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, ROTATED_FILES + 1))]
        for number in range(ROTATED_FILES, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(names[number - 1], names[number])
        return self._open()

    def _drop(self, size: int, error: OSError) -> None:
        self._dropped_bytes += size
        self.close()  # the next write opens it again: by then there may be space
        if not self._noted:
            self._noted = True
            self._note(f"{self._path.name} cannot be written ({error.strerror}): lines are missing in it")


def _with_timestamps(lines: bytes) -> bytes:
    stamp = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3].encode() + b"Z "
    return stamp + lines[:-1].replace(b"\n", b"\n" + stamp) + b"\n"
