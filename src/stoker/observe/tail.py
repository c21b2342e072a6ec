"""Reading a file while it grows."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stoker.rundir import Record
from stoker.rundir.files import open_regular
from stoker.rundir.records import RECORD_BYTES, Check, parse_line

BLOCK = 1 << 20  # bytes that are read at once


class Tail:
    """Hands out the whole lines that were added since the last look."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._path = path
        self._position = start
        self.skipped = 0
        """Lines that were no record, or too long for one."""

    def records(self, check: Check) -> Iterator[Record]:
        for line in self._lines():
            try:
                record = parse_line(line)
            except ValueError:
                self.skipped += bool(line.strip())
                continue
            if check(record):
                yield record
            else:
                self.skipped += 1

    def _lines(self) -> Iterator[bytes]:
        try:
            with open_regular(self._path) as file:
                file.seek(self._position)
                yield from self._read(file)
        except FileNotFoundError:
            return

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        """A line that is too long for a record is left out."""
        head, too_long = b"", False
        while data := file.read(BLOCK):
            *lines, head = (head + data).split(b"\n")
            for line in lines:
                self._position += len(line) + 1
                if too_long:
                    self.skipped += 1
                    too_long = False
                else:
                    yield line
            if len(head) > RECORD_BYTES:
                self._position += len(head)
                head, too_long = b"", True

    @classmethod
    def from_now(cls, path: Path) -> "Tail":
        return cls(path, start=path.stat().st_size if path.exists() else 0)
