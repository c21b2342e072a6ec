"""Parquet, row group by row group; one column is the text."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.data.sources.document import BadRecords, Piece, Span, cut
from stoker.spec.errors import UserError

COUNTS = "row"
ROWS = 512  # read at once


def spans(path: Path, size: int, target: int) -> list[Span]:
    """Runs of whole row groups, measured by their share of the file's rows."""
    with _opened(path) as file:
        rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    found, start, weight = [], 0, 0
    for group, count in enumerate(rows):
        weight += count * size // max(1, sum(rows))
        if weight >= target or group == len(rows) - 1:
            found.append(Span(start=start, stop=group + 1, size=weight))
            start, weight = group + 1, 0
    return found


def pieces(path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:
    with _opened(path) as file:
        columns = file.schema_arrow.names
        if field not in columns:
            problem = f"has no column '{field}' (it has: {', '.join(columns)})"
            bad.add(str(path), problem, remedy="Set data.field to a column it has")
            return
        place = 0
        for group in range(span.start, span.stop or file.num_row_groups):
            row = 0
            for batch in file.iter_batches(ROWS, row_groups=[group], columns=[field], use_threads=False):
                for text in batch.column(0).to_pylist():
                    row, place = row + 1, place + 1
                    if isinstance(text, str):
                        yield from cut(text, place)
                    else:
                        where = f"{path}, row group {group}, row {row}:"
                        problem = f"has no text in column '{field}' but {type(text).__name__}"
                        bad.add(where, problem, remedy="Mend the row, or set data.field to the column of the text")


def before(path: Path, span: Span) -> int:
    with _opened(path) as file:
        return sum(file.metadata.row_group(i).num_rows for i in range(span.start))


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as e:
        raise UserError(f"{path} cannot be read as Parquet: {e}", remedy="Make or fetch the file again") from e
