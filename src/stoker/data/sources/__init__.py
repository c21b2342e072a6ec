"""The formats of text. To add a format: a module with the functions of `Source`, and a line here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from stoker.data.sources.document import BadRecords, Piece, Span
from stoker.data.sources.stream import COMPRESSIONS
from stoker.spec import extras


class Source(Protocol):
    COUNTS: str
    """The unit of places in a file: byte, line, record or row."""

    def spans(self, path: Path, size: int, target: int) -> list[Span]:
        """Parts of about `target` bytes that can be read independently; the same for the same file."""

    def pieces(self, path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:
        """The text of a span, in order."""

    def before(self, path: Path, span: Span) -> int:
        """How many of its units come before a span."""


SOURCES = {  # format -> the module that reads it
    "text": "stoker.data.sources.text",
    "jsonl": "stoker.data.sources.jsonl",
    "json": "stoker.data.sources.json_list",
    "csv": "stoker.data.sources.csv",
    "parquet": "stoker.data.sources.parquet",
}

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".hdf5": "hdf5",  # not text: read by data/bert/hdf5.py
    ".h5": "hdf5",
}


def source_of(format: str) -> Source:
    """The module of a format. Raises MissingExtra when it needs a package that is not installed."""
    return cast(Source, extras.load_extra(SOURCES[format]))


def format_of(path: Path) -> str:
    """A file with an unknown suffix is plain text."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1], "text") if suffixes else "text"
