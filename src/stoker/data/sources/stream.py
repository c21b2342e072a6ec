"""Bytes of a file, through its compression."""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from stoker.data.sources.document import MAX_RECORD_BYTES, Span
from stoker.spec import extras
from stoker.spec.errors import UserError
from stoker.spec.files import check_regular, open_regular

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
BOM = b"\xef\xbb\xbf"
MAX_RATIO = 200  # unpacked bytes per packed byte; text has 3 to 10, repetitive logs up to 100
UNCHECKED_BYTES = 64 << 20  # unpacked bytes before the ratio is checked
CHUNK_BYTES = 1 << 18


@contextmanager
def reading(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    try:
        if compression is None:
            with open_regular(path) as file:
                yield file
        else:
            check_regular(path)
            with extras.load_extra("pyarrow").input_stream(str(path), compression=compression) as packed:
                yield io.BufferedReader(_Unpacked(packed, path), CHUNK_BYTES)
    except OSError as e:
        if compression is None:
            raise UserError(f"cannot read {path}: {e.strerror}", remedy="Check the file and its permissions") from e
        raise UserError(f"{path} cannot be read as {compression}: {e}", remedy="Make or fetch the file again") from e


def rest_of_line(file: IO[bytes], *, most: int | None = None) -> tuple[int, bool]:
    """Skips to the end of the line, or past `most` bytes; returns the bytes skipped, and whether the line ended."""
    count = 0
    while (most is None or count <= most) and (part := file.readline(CHUNK_BYTES)):
        count += len(part)
        if part.endswith(b"\n"):
            return count, True
    return count, False


def line_starts(file: IO[bytes], places: Iterable[int]) -> Iterator[int]:
    """The first start of a line at or after each place, if any; each byte is read at most once."""
    newest = clear = 0  # the newest start, and where reading stopped without a start
    for place in places:
        if place > newest:
            begin = max(place - 1, clear)  # one byte earlier, to detect a line that starts at this place
            file.seek(begin)
            passed, ended = rest_of_line(file, most=MAX_RECORD_BYTES)
            newest, clear = (begin + passed, clear) if ended else (newest, begin + passed)
        if place <= newest:
            yield newest


class _Unpacked(io.RawIOBase):
    """A decompressed file; refuses a decompression bomb, since no text compresses that well."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._left = UNCHECKED_BYTES + MAX_RATIO * path.stat().st_size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._left -= count
        if self._left < 0:
            raise UserError(
                f"{self._path} unpacks to more than {MAX_RATIO} times its size, which no text does",
                remedy="Remove it, or unpack it yourself",
            )
        return count


def byte_spans(size: int, starts: Iterator[int]) -> list[Span]:
    """Spans that start at 0 and at `starts`; the last span is open-ended."""
    bounds = [0]
    for start in starts:
        if bounds[-1] < start < size:
            bounds.append(start)
    ends: list[int | None] = [*bounds[1:], None]
    return [
        Span(start=start, stop=stop, size=(size if stop is None else stop) - start)
        for start, stop in zip(bounds, ends, strict=True)
    ]


def is_compressed(path: Path) -> bool:
    return path.suffix.lower() in COMPRESSIONS
