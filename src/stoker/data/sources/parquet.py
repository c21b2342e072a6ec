"""Parquet, row group by row group; one column is the text."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.data.sources.document import MAX_RECORD_BYTES, BadRecord, BadRecords, Piece, Span, TooLong, cut, listed
from stoker.spec.errors import UserError
from stoker.spec.files import check_regular

COUNTS = "row"
BATCH_ROWS = 64  # at most; more are no faster
MAX_HELD_BYTES = 256 << 20  # of rows read at once: a text that many rows share is stored once, and read for each


def spans(path: Path, size: int, target: int) -> list[Span]:
    """Runs of whole row groups, measured by their share of the file's rows."""
    with _opened(path) as file:
        rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    cuts, start, weight, total = [], 0, 0, max(1, sum(rows))
    for group, count in enumerate(rows):
        weight += count * size // total
        if weight >= target or group == len(rows) - 1:
            cuts.append(Span(start=start, stop=group + 1, size=weight))
            start, weight = group + 1, 0
    return cuts


def pieces(path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:
    with _opened(path) as file:
        columns = file.schema_arrow.names
        if field not in columns:
            problem = f"has no column '{field}' (it has: {listed(columns)})"
            bad.add(str(path), problem, remedy="Set data.field to one of its columns")
            return
        place = 0
        for group in range(span.start, span.stop or file.num_row_groups):
            rows, size = _size(file, group, field)
            if size > rows * MAX_RECORD_BYTES:  # at least one row is too long, and reading would hold it in memory
                bad.add(f"{path}, row group {group}:", f"a row of it {TooLong()}", remedy=TooLong.remedy)
                place += rows
                continue
            # a single cell may be as large as the whole column
            count = min(BATCH_ROWS, max(1, MAX_HELD_BYTES // max(1, size)))
            row = 0
            for batch in file.iter_batches(count, row_groups=[group], columns=[field], use_threads=False):
                for value in batch.column(0):
                    row, place = row + 1, place + 1
                    try:
                        text = _text(value, field)
                    except BadRecord as e:
                        remedy = "Fix the row, or set data.field to the column of the text"
                        bad.add(
                            f"{path}, row group {group}, row {row}:",
                            e,
                            remedy=e.remedy if isinstance(e, TooLong) else remedy,
                        )
                        continue
                    yield from cut(text, place)


def before(path: Path, span: Span) -> int:
    with _opened(path) as file:
        return sum(file.metadata.row_group(i).num_rows for i in range(span.start))


def _size(file: pq.ParquetFile, group: int, field: str) -> tuple[int, int]:
    """Rows of a row group, and the bytes of a column in it, by the file's metadata."""
    facts = file.metadata.row_group(group)
    columns = (facts.column(i) for i in range(facts.num_columns))
    size = sum(column.total_uncompressed_size for column in columns if column.path_in_schema.split(".")[0] == field)
    return facts.num_rows, size


def _text(value: pa.Scalar, field: str) -> str:
    try:
        text = value.as_py()
    except UnicodeDecodeError as e:
        raise BadRecord(f"is not UTF-8 text in column '{field}': byte {e.start} is 0x{e.object[e.start]:02x}") from None
    if not isinstance(text, str):
        raise BadRecord(f"has no text in column '{field}' but {type(text).__name__}")
    if len(text) > MAX_RECORD_BYTES:
        raise TooLong
    return text


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        check_regular(path)
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as e:
        raise UserError(f"{path} cannot be read as Parquet: {e}", remedy="Make or fetch the file again") from e
