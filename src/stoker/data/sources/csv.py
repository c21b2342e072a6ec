"""CSV and TSV with a header line; one column is the text."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

from stoker.data.sources.document import MAX_RECORD_BYTES, BadRecord, BadRecords, Piece, Span, TooLong, cut, listed
from stoker.data.sources.stream import BOM, reading, rest_of_line

COUNTS = "line"


def spans(path: Path, size: int, target: int) -> list[Span]:  # noqa: ARG001 (the Source protocol)
    return [Span(size=size)]  # a quoted field may hold line ends, so only the start of the file is sure to start a row


def pieces(path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:  # noqa: ARG001 (the Source protocol)
    csv.field_size_limit(MAX_RECORD_BYTES)  # the default of the csv module is 128 KiB per field
    delimiter = "\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes[-2:]] else ","
    with reading(path) as file:
        lines = _CsvLines(file)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        column: int | None = None
        while True:
            try:
                line = reader.line_num + 1  # a row may have several lines
                lines.row = 0
                row = next(reader, None)
                if row is None:
                    return
                if column is None:
                    column = _column(row, field)
                elif row:
                    yield from cut(_text(row, column), line)
            except (BadRecord, csv.Error) as e:
                remedy = "Fix the line" if column is not None else "Set data.field to one of its columns"
                remedy = e.remedy if isinstance(e, TooLong) else remedy
                bad.add(f"{path}, line {max(line, reader.line_num)}:", e, remedy=remedy)
                if column is None:
                    return


def before(path: Path, span: Span) -> int:  # noqa: ARG001 (the Source protocol)
    return 0


def _column(header: list[str], field: str) -> int:
    if field not in header:
        raise BadRecord(f"the header has no column '{field}' (it has: {listed(header)})")
    return header.index(field)


def _text(row: list[str], column: int) -> str:
    if len(row) <= column:
        raise BadRecord(f"has {len(row)} columns, and the text is in column {column + 1}")
    text = row[column]
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadRecord("is not UTF-8 text") from None
    return text


class _CsvLines:
    """The lines of a file, decoded. A line that makes its row too long raises a BadRecord; iteration can continue."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._first = True
        self.row = 0
        """Bytes of the current row so far."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._file.readline(MAX_RECORD_BYTES)
        if not line:
            raise StopIteration
        self.row += len(line)
        if self.row >= MAX_RECORD_BYTES:
            if not line.endswith(b"\n"):
                rest_of_line(self._file)
            raise TooLong
        if self._first:
            self._first, line = False, line.removeprefix(BOM)
        # A byte that is not UTF-8 goes through as a surrogate, so that only the row it is in is bad.
        return line.decode("utf-8", "surrogateescape")
