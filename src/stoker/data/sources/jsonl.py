"""JSON lines: a line is one record, and one of its fields is the text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from stoker.data.sources.document import BadRecord, BadRecords, Piece, Span, cut, text_of
from stoker.data.sources.stream import BOM, byte_spans, is_compressed, reading

COUNTS = "line"


def spans(path: Path, size: int, target: int) -> list[Span]:
    if size < 2 * target or is_compressed(path):
        return [Span(size=size)]
    with open(path, "rb") as file:
        return byte_spans(size, (_line_start(file, place) for place in range(target, size - target // 2, target)))


def pieces(path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:
    with reading(path) as file:
        if span.start:
            file.seek(span.start)
        position = span.start
        for number, line in enumerate(file, 1):
            if span.stop is not None and position >= span.stop:
                break
            first, position = position == 0, position + len(line)
            if first:
                line = line.removeprefix(BOM)
            if line.isspace():
                continue
            try:
                text = text_of(_parse(line), field)
            except BadRecord as e:
                where = f"{path}, line {before(path, span) + number}:"
                bad.add(where, e, remedy="Mend the line, or set data.field to the field that holds the text")
                continue
            yield from cut(text, number)


def before(path: Path, span: Span) -> int:
    lines, left = 0, span.start
    with open(path, "rb") as file:
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
    except RecursionError:
        raise BadRecord("is nested too deeply") from None


def _line_start(file: IO[bytes], place: int) -> int:
    file.seek(place - 1)  # one before: a line that begins right here stays whole
    file.readline()
    return file.tell()
