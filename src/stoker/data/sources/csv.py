"""CSV and TSV with a header line; one column is the text."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

from stoker.data.sources.document import LONGEST_RECORD, BadRecord, BadRecords, Piece, Span, TooLong, cut, listed
from stoker.data.sources.stream import BOM, reading, rest_of_line

COUNTS = "line"


def spans(path: Path, size: int, target: int) -> list[Span]:  # noqa: ARG001 (the Source seam)
    return [Span(size=size)]  # a quoted field may hold line ends, so only the start of the file is sure to start a row


def pieces(path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:  # noqa: ARG001 (the Source seam)
    csv.field_size_limit(LONGEST_RECORD)  # the csv module stops at 128 KiB a field unless told
    delimiter = "\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes[-2:]] else ","
    with reading(path) as file:
        lines = _Lines(file)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        column: int | None = None
        while True:
            try:
                line = reader.line_num + 1  # a row may take several
                lines.row = 0
                row = next(reader, None)
                if row is None:
                    return
                if column is None:
                    column = _column(row, field)
                elif row:
                    yield from cut(_text(row, column), line)
            except (BadRecord, csv.Error) as e:
                remedy = "Mend the line" if column is not None else "Set data.field to a column it has"
                remedy = e.remedy if isinstance(e, TooLong) else remedy
                bad.add(f"{path}, line {max(line, reader.line_num)}:", e, remedy=remedy)
                if column is None:
                    return


def before(path: Path, span: Span) -> int:  # noqa: ARG001 (the Source seam)
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


class _Lines:
    """The lines of a file, decoded. A line that makes its row too long is a BadRecord; the next one follows."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._first = True
        self.row = 0
        """Bytes of the row at hand so far."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._file.readline(LONGEST_RECORD)
        if not line:
            raise StopIteration
        self.row += len(line)
        if self.row >= LONGEST_RECORD:
            if not line.endswith(b"\n"):
                rest_of_line(self._file)
            raise TooLong
        if self._first:
            self._first, line = False, line.removeprefix(BOM)
        # A byte that is not UTF-8 goes through as a surrogate, so that only the row it is in is bad.
        return line.decode("utf-8", "surrogateescape")
