"""Bytes of a file, through its compression."""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from stoker.data.sources.document import LONGEST_RECORD, Span
from stoker.spec.errors import UserError
from stoker.spec.regular import check_regular, open_regular

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
BOM = b"\xef\xbb\xbf"
MOST_RATIO = 200  # unpacked bytes for one packed; text has 3 to 10, and logs that repeat themselves up to 100
FREE = 64 << 20  # unpacked bytes before the ratio counts
CHUNK = 1 << 18


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
            with pa.input_stream(str(path), compression=compression) as packed:
                yield io.BufferedReader(_Unpacked(packed, path), CHUNK)
    except OSError as e:
        if compression is None:
            raise UserError(f"cannot read {path}: {e.strerror}", remedy="Check the file and its permissions") from e
        raise UserError(f"{path} cannot be read as {compression}: {e}", remedy="Make or fetch the file again") from e


def rest_of_line(file: IO[bytes], *, most: int | None = None) -> tuple[int, bool]:
    """Read on to the end of the line, or past `most` bytes, holding little of it: the bytes, and whether it ended."""
    count = 0
    while (most is None or count <= most) and (part := file.readline(CHUNK)):
        count += len(part)
        if part.endswith(b"\n"):
            return count, True
    return count, False


def line_starts(file: IO[bytes], places: Iterable[int]) -> Iterator[int]:
    """The first start of a line at each place or after it, as far as there is one; each byte is read once at most."""
    found = clear = 0  # the newest start, and where reading stopped without one
    for place in places:
        if place > found:
            begin = max(place - 1, clear)  # one before: a line that begins right here stays whole
            file.seek(begin)
            passed, ended = rest_of_line(file, most=LONGEST_RECORD)
            found, clear = (begin + passed, clear) if ended else (found, begin + passed)
        if place <= found:
            yield found


class _Unpacked(io.RawIOBase):
    """What a compressed file holds, unless it is a bomb: text does not shrink to a thousandth."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._left = FREE + MOST_RATIO * path.stat().st_size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._left -= count
        if self._left < 0:
            raise UserError(
                f"{self._path} unpacks to more than {MOST_RATIO} times its size, which no text does",
                remedy="Take it out, or unpack it yourself",
            )
        return count


def byte_spans(size: int, starts: Iterator[int]) -> list[Span]:
    """Spans that begin at 0 and at `starts`, the last one open."""
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
