"""Bytes of a file, through its compression."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa

from stoker.data.sources.document import Span
from stoker.spec.errors import UserError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
BOM = b"\xef\xbb\xbf"


@contextmanager
def reading(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    try:
        if compression is None:
            with open(path, "rb") as file:
                yield file
        else:
            with pa.input_stream(str(path), compression=compression) as file:
                yield io.BufferedReader(file, 1 << 18)
    except OSError as e:
        if compression is None:
            raise UserError(f"cannot read {path}: {e.strerror}", remedy="Check the file and its permissions") from e
        raise UserError(f"{path} cannot be read as {compression}: {e}", remedy="Make or fetch the file again") from e


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
