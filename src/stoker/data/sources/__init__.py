"""The formats that text comes in. To add one: a module with what `Source` names, and a line here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from stoker.data.sources import csv, json_list, jsonl, parquet, text
from stoker.data.sources.document import BadRecords, Piece, Span
from stoker.data.sources.stream import COMPRESSIONS


class Source(Protocol):
    COUNTS: str
    """What a place in a file is counted in: byte, line, record or row."""

    def spans(self, path: Path, size: int, target: int) -> list[Span]:
        """Parts of about `target` bytes that can be read by themselves; the same for the same file."""

    def pieces(self, path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:
        """The text of a span, in order."""

    def before(self, path: Path, span: Span) -> int:
        """How much of what it counts comes before a span."""


SOURCES: dict[str, Source] = {"text": text, "jsonl": jsonl, "json": json_list, "csv": csv, "parquet": parquet}

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".hdf5": "hdf5",  # no source of text: data/hdf5.py reads it
    ".h5": "hdf5",
}


def format_of(path: Path) -> str:
    """A file of no known suffix is plain text."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1], "text") if suffixes else "text"
