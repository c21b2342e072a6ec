"""JSON with the records in one list: {"data": [{"text": …}, …]}, or the bare list. Read through a sliding window."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from stoker.data.sources.document import MAX_RECORD_BYTES, BadRecord, BadRecords, Piece, Span, TooLong, cut, text_of
from stoker.data.sources.stream import reading

COUNTS = "record"
LIST_KEY = "data"
CHUNK_BYTES = 1 << 18
FORM = f'Write it as {{"{LIST_KEY}": [{{"text": …}}, …]}}; a file with one object a line is named .jsonl'


def spans(path: Path, size: int, target: int) -> list[Span]:  # noqa: ARG001 (the Source protocol)
    return [Span(size=size)]


def pieces(path: Path, span: Span, field: str, bad: BadRecords) -> Iterator[Piece]:  # noqa: ARG001 (the Source protocol)
    with reading(path) as file:
        window = _Window(file)
        number = 0
        try:
            window.enter_list()
            while window.more():
                number += 1
                record = window.value()
                try:
                    text = text_of(record, field)
                except BadRecord as e:
                    remedy = "Fix it, or set data.field to the field with the text"
                    bad.add(f"{path}, record {number}:", e, remedy=remedy)
                    continue
                yield from cut(text, number)
        except BadRecord as e:  # the start of the next record is unknown: the rest of the file is skipped
            bad.add(
                f"{path}{f', record {number}' if number else ''}:",
                e,
                remedy=e.remedy if isinstance(e, TooLong) else FORM,
            )


def before(path: Path, span: Span) -> int:  # noqa: ARG001 (the Source protocol)
    return 0


class _Window:
    """Reads JSON values in order, with little more than the current value in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._text, self._at = "", 0
        self._bytes_decoded = 0
        self._ended = False
        self._bytes = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()

    def enter_list(self) -> None:
        """Moves to the first record of the list, past the other keys of its object."""
        if self._next() == "[":
            self._at += 1
            return
        self._take("{")
        while True:
            key = self.value()
            self._take(":")
            if key == LIST_KEY:
                break
            self.value()
            if self._next() != ",":
                raise BadRecord(f'has no list under "{LIST_KEY}"')
            self._take(",")
        if self._next() != "[":
            raise BadRecord(f'has no list under "{LIST_KEY}"')
        self._take("[")

    def more(self) -> bool:
        """Whether another record follows."""
        if self._next() == ",":
            self._at += 1
        return self._next() != "]"

    def value(self) -> Any:
        self._next()
        while True:
            try:
                value, stop = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as e:
                if self._ended or not self._cut_off(e):
                    raise BadRecord(f"is not JSON: {e.msg} at byte {self._byte(e.pos)}") from None
            except ValueError:  # Python converts no more than 4,300 digits
                raise BadRecord("has a number that is too long") from None
            except RecursionError:
                raise BadRecord("is nested too deeply") from None
            else:
                if stop - self._at > MAX_RECORD_BYTES:
                    raise TooLong
                if stop < len(self._text) or self._ended:  # a number may continue
                    self._at = stop
                    return value
            if len(self._text) - self._at > MAX_RECORD_BYTES:
                raise TooLong
            self._read(max(CHUNK_BYTES, len(self._text)))  # doubled, so that a long record is parsed few times

    def _cut_off(self, error: json.JSONDecodeError) -> bool:
        """Whether more text could make it valid."""
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - 16

    def _take(self, character: str) -> None:
        if self._next() != character:
            raise BadRecord(f"is not JSON: '{character}' expected at byte {self._byte(self._at)}")
        self._at += 1

    def _next(self) -> str:
        """The next character that is not a space; empty at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                raise BadRecord("ends before its list does")
            self._read(CHUNK_BYTES)

    def _read(self, size: int) -> None:
        chunk = self._file.read(size)
        self._ended = not chunk
        begin = self._bytes_decoded - len(self._bytes.getstate()[0])
        try:
            more = self._bytes.decode(chunk, self._ended)
        except UnicodeDecodeError as e:
            raise BadRecord(f"is not UTF-8 text: byte {begin + e.start} is 0x{e.object[e.start]:02x}") from None
        self._bytes_decoded += len(chunk)
        self._text, self._at = self._text[self._at :] + more, 0

    def _byte(self, place: int) -> int:
        return self._bytes_decoded - len(self._bytes.getstate()[0]) - len(self._text[place:].encode())
