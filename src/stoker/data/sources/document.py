"""What all sources share: spans of a file, pieces of text, and unreadable records."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from stoker.spec.errors import UserError

MAX_RECORD_BYTES = 32 << 20  # of one record, which is held in memory; parsed, it may take 20 times as much
NAMES, NAME = 20, 60  # names of fields in a message, and characters of each
PIECE_CHARACTERS = 1 << 16  # passed to the tokenizer at once: longer pieces are no faster and take more memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A part of a file that can be read independently, in the source's own unit (bytes, row groups)."""

    start: int = 0
    stop: int | None = None
    """None: the end of the file."""
    size: int
    """Bytes on disk, about."""


class Piece(NamedTuple):
    text: str
    last: bool
    """The document ends here."""
    place: int
    """Its place in the span, in the unit of the source: its first byte, from 0, or its record, from 1."""


class BadRecord(Exception):
    """One record cannot be used; the message says what is wrong with it."""


class TooLong(BadRecord):
    remedy = "Split it into several records, or save its text as a .txt file, which may have any length"

    def __init__(self) -> None:
        super().__init__(f"is longer than {MAX_RECORD_BYTES >> 20} MiB, the most that one record may have")


class BadRecords:
    """What to do with unreadable records: stop at the first, or skip and count them."""

    def __init__(self, *, skip: bool) -> None:
        self._skip = skip
        self.skipped = 0

    def add(self, place: str, problem: object, *, remedy: str) -> None:
        if not self._skip:
            raise UserError(
                f"{place} {problem}",
                remedy=f"{remedy}, or set data.skip_bad=true (stoker prepare: --skip-bad) to skip such records",
            )
        self.skipped += 1


def text_of(record: object, field: str) -> str:
    """The text of one parsed JSON record."""
    if not isinstance(record, dict):
        raise BadRecord(f"is not an object with a field '{field}'")
    text = record.get(field)
    if text is None:
        raise BadRecord(f"has no field '{field}' (it has: {listed(record)})")
    if not isinstance(text, str):
        raise BadRecord(f"has no text in field '{field}' but {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadRecord(f"has half a surrogate pair in field '{field}'") from None
    return text


def listed(names: Iterable[str]) -> str:
    """The names of the fields or columns, shortened."""
    first = [name if len(name) <= NAME else f"{name[:NAME]}…" for name in islice(names, NAMES + 1)]
    return ", ".join([*first[:NAMES], *(["…"] if len(first) > NAMES else [])]) or "none"


def cut(text: str, place: int) -> Iterator[Piece]:
    """A document in pieces that give the same tokens as the whole."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        stop = cut_point(text, start + PIECE_CHARACTERS // 2, start + PIECE_CHARACTERS)
        yield Piece(text[start:stop], last=False, place=place)
        start = stop
    yield Piece(text[start:], last=True, place=place)


def cut_point(text: str, low: int, high: int) -> int:
    """The last place in (low, high] where a cut changes no token.

    Between a letter or digit and a line end every byte-level pre-tokenizer starts a new word, whatever follows. Where
    there is no such place the cut comes after a line end, or else at `high`, and may change the tokens next to it.
    """
    newline = text.rfind("\n", low + 2, high)
    after_any = newline + 1
    while newline != -1:
        word_end = newline - 1 if text[newline - 1] == "\r" else newline
        if text[word_end - 1].isalnum():
            return word_end
        newline = text.rfind("\n", low + 2, newline)
    return after_any or high
