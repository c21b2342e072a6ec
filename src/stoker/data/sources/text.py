"""Plain text: a file is one document, read in pieces, so that its length does not matter."""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from stoker.data.sources.document import PIECE_CHARACTERS, BadRecords, Piece, Span, cut_point
from stoker.data.sources.stream import BOM, byte_spans, is_compressed, reading
from stoker.spec.files import open_regular

COUNTS = "byte"
CHUNK_BYTES = 1 << 18
WINDOW_BYTES = 1 << 16  # how far from its nominal place a span may start


def spans(path: Path, size: int, target: int) -> list[Span]:
    if size < 2 * target or is_compressed(path):
        return [Span(size=size)]
    with open_regular(path) as file:
        return byte_spans(size, (_align(file, place) for place in range(target, size - target // 2, target)))


def pieces(path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:  # noqa: ARG001 (the Source protocol)
    buffer, place = "", 0
    with reading(path) as file:
        if span.start:
            file.seek(span.start)
        for text in _decoded(file, span):
            buffer += text
            while len(buffer) > PIECE_CHARACTERS:
                stop = cut_point(buffer, PIECE_CHARACTERS // 2, PIECE_CHARACTERS)
                yield Piece(buffer[:stop], last=False, place=place)
                place += len(buffer[:stop].encode())
                buffer = buffer[stop:]
    yield Piece(buffer, last=span.stop is None, place=place)


def before(path: Path, span: Span) -> int:
    if span.start:
        return span.start
    with reading(path) as file:
        return len(BOM) if file.read(len(BOM)) == BOM else 0


class Checker:
    """Checks whether the bytes that it is fed are text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._fed = 0
        self.problem: str | None = None

    def feed(self, chunk: bytes, *, final: bool = False) -> None:
        if self.problem:
            return
        begin = self._fed - len(self._decoder.getstate()[0])
        if (nul := chunk.find(b"\0")) >= 0:
            self.problem = f"is not text: it has a NUL byte at byte {self._fed + nul}"
            return
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError as e:
            self.problem = f"is not UTF-8 text: byte {begin + e.start} is 0x{e.object[e.start]:02x}"
        self._fed += len(chunk)


def _decoded(file: IO[bytes], span: Span) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8" if span.start else "utf-8-sig")()
    left = None if span.stop is None else span.stop - span.start
    while chunk := file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)):
        if left is not None:
            left -= len(chunk)
        yield decoder.decode(chunk)
    yield decoder.decode(b"", True)


def _align(file: IO[bytes], place: int) -> int:
    """Where a span near `place` can start without changing a token."""
    file.seek(place)
    window = file.read(WINDOW_BYTES)
    skip = next((i for i, byte in enumerate(window[:4]) if byte & 0xC0 != 0x80), 0)
    text = codecs.getincrementaldecoder("utf-8")().decode(window[skip:])
    return place + skip + len(text[: cut_point(text, 0, len(text))].encode())
