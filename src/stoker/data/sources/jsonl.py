"""JSON lines: a line is one record, and one of its fields is the text."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from stoker.data.sources.document import (
    MAX_RECORD_BYTES,
    BadRecord,
    BadRecords,
    Piece,
    Span,
    TooLong,
    cut,
    text_of,
)
from stoker.data.sources.stream import BOM, byte_spans, is_compressed, line_starts, reading, rest_of_line
from stoker.spec.files import open_regular

COUNTS = "line"


def spans(path: Path, size: int, target: int) -> list[Span]:
    if size < 2 * target or is_compressed(path):
        return [Span(size=size)]
    with open_regular(path) as file:
        return byte_spans(size, line_starts(file, range(target, size - target // 2, target)))


def pieces(path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:
    with reading(path) as file:
        if span.start:
            file.seek(span.start)
        position = span.start
        for number, line in enumerate(iter(partial(file.readline, MAX_RECORD_BYTES), b""), 1):
            if span.stop is not None and position >= span.stop:
                break
            first, position = position == 0, position + len(line)
            if first:
                line = line.removeprefix(BOM)
            if len(line) == MAX_RECORD_BYTES and not line.endswith(b"\n"):
                position += rest_of_line(file)[0]
                bad.add(f"{path}, line {before(path, span) + number}:", TooLong(), remedy=TooLong.remedy)
                continue
            if line.isspace():
                continue
            try:
                text = text_of(_parse(line), field)
            except BadRecord as e:
                place = f"{path}, line {before(path, span) + number}:"
                bad.add(place, e, remedy="Fix the line, or set data.field to the field with the text")
                continue
            yield from cut(text, number)


def before(path: Path, span: Span) -> int:
    lines, left = 0, span.start
    with open_regular(path) as file:
        while left > 0 and (chunk := file.read(min(left, 1 << 20))):
            lines += chunk.count(b"\n")
            left -= len(chunk)
    return lines


def _parse(line: bytes) -> object:
    try:
        return json.loads(line)
    except UnicodeDecodeError as e:
        raise BadRecord(f"is not UTF-8 at column {e.start + 1}") from None
    except json.JSONDecodeError as e:
        raise BadRecord(f"is not JSON: {e.msg} at column {e.colno}") from None
    except ValueError:  # Python converts no more than 4,300 digits
        raise BadRecord("has a number that is too long") from None
    except RecursionError:
        raise BadRecord("is nested too deeply") from None
