"""Reading a file while it grows, and from its end."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stoker.rundir import Record

BLOCK = 8 * 1024  # bytes of the first look at the end of a file; each further one is twice as large
LARGEST_BLOCK = 1024 * 1024


class Tail:
    """Hands out the whole lines that were added since the last look."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._path = path
        self._position = start

    def lines(self) -> list[str]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.decode(errors="replace").splitlines()

    def records(self) -> list[Record]:
        found = []
        for line in self.lines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # torn by a kill
        return found

    @classmethod
    def from_now(cls, path: Path) -> "Tail":
        return cls(path, start=path.stat().st_size if path.exists() else 0)


def lines_backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The lines before position `end`, last one first, each with its newline; a last one without has no end yet."""
    position, block, head, newline = end, BLOCK, b"", b""
    while position > 0:
        size = min(block, position)
        position -= size
        block = min(2 * block, LARGEST_BLOCK)
        file.seek(position)
        head, *lines = (file.read(size) + head).split(b"\n")
        for line in reversed(lines):
            if line or newline:
                yield line + newline
            newline = b"\n"
    if head or newline:
        yield head + newline


def records_backwards(path: Path, *marks: bytes) -> Iterator[Record]:
    """The records of a file, newest first; with marks, those of the lines that hold one of them."""
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed by the with below)
    except FileNotFoundError:
        return
    with file:
        for line in lines_backwards(file, file.seek(0, os.SEEK_END)):
            if marks and not any(mark in line for mark in marks):
                continue
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn by a kill, or still being written
            if isinstance(record, dict):
                yield record
