"""From tokens back to the documents that they were made of, by reading the sources again."""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from stoker.data import provenance
from stoker.data.files import DataFile, discover, stamp_of
from stoker.data.pairs import PairSet, fields
from stoker.data.provenance import Part, Provenance
from stoker.data.shards import Shard, TokenSet
from stoker.data.sources import SOURCES
from stoker.data.sources.document import BadRecords
from stoker.data.tokenizer import TOKENIZER_FILE
from stoker.spec.errors import UserError

UNITS = 16  # whose provenance is held at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """Tokens in a row that are of one document."""

    tokens: int
    text: str
    """Decoded from the tokens; the token that ends a document is left out."""
    ends: bool
    """The document ends here."""
    file: str | None = None
    counts: str | None = None
    """What `place` is counted in: byte (from 0), line, record or row (from 1)."""
    place: int | None = None
    character: int = 0
    """Characters of the record before the passage."""
    problem: str | None = None
    """Why file or place are not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stretch:
    ids: list[int]
    ends: bool
    place: int
    character: int


class Passages:
    """Of a token set's training stream. A file that is not where it was is looked for in `words`, as in data.path."""

    def __init__(self, tokens: TokenSet, words: list[str]) -> None:
        self._set, self._words = tokens, words
        self._tokenizer = Tokenizer.from_file(str(tokens.tokenizer / TOKENIZER_FILE))
        self._unit = lru_cache(UNITS)(self._read_unit)
        self._before = lru_cache(UNITS)(lambda format, path, span: SOURCES[format].before(path, span))
        self._sources: dict[Path, tuple[Path, str | None]] = {}

    def of(self, start: int, stop: int) -> list[Passage]:
        """Of the tokens start..stop-1."""
        found: list[Passage] = []
        for shard, offset, tokens in self._set.train.stretches(start, stop):
            found += self._in_shard(shard, offset, tokens.tolist())
        return found

    def _in_shard(self, shard: Shard, offset: int, ids: list[int]) -> Iterator[Passage]:
        unit = self._unit(shard)
        if unit is None:
            yield from self._text_alone(ids, None, "the token set was made without a record of its sources")
            return
        origin, starts = unit
        for number in range(bisect_right(starts, offset) - 1, len(origin.parts)):
            part, first = origin.parts[number], starts[number]
            low, high = max(offset, first), min(offset + len(ids), first + part.tokens)
            if low < high:
                yield from self._in_part(part, origin.field, low - first, ids[low - offset : high - offset])
            if high == offset + len(ids):
                return

    def _in_part(self, part: Part, field: str, start: int, ids: list[int]) -> Iterator[Passage]:
        if part.file.url:
            yield from self._text_alone(ids, part.file.url, "only its tokens were kept here")
            return
        path, problem = self._source(part.file)
        if problem is None:
            found = _joined(self._read_again(path, part, field, start, start + len(ids)))
            if [id for stretch in found for id in stretch.ids] == ids:
                for stretch in found:
                    passage = self._passage(stretch.ids, ends=stretch.ends, path=path)
                    counts = SOURCES[part.file.format].COUNTS
                    yield replace(passage, counts=counts, place=stretch.place, character=stretch.character)
                return
            problem = "its text no longer gives the tokens of the set"
        yield from self._text_alone(ids, path, problem)

    def _read_again(self, path: Path, part: Part, field: str, start: int, stop: int) -> Iterator[_Stretch]:
        """Tokens start..stop-1 of a part, piece by piece, made anew from the source."""
        source = SOURCES[part.file.format]
        before: int = self._before(part.file.format, path, part.span)
        skip, token = part.mark(start)
        characters = 0  # of the document before the piece
        for number, piece in enumerate(source.pieces(path, part.span, field, BadRecords(skip=True))):
            if number >= skip:
                encoding = self._tokenizer.encode(piece.text, add_special_tokens=False)
                ids = encoding.ids + [self._set.end] * (piece.last and bool(characters or piece.text))
                low, high = max(start - token, 0), min(stop - token, len(ids))
                if low < high:
                    at = encoding.offsets[low][0] if low < len(encoding.ids) else len(piece.text)
                    place, character = before + piece.place, characters + at
                    if source.COUNTS == "byte":
                        place, character = place + len(piece.text[:at].encode()), 0
                    ends = piece.last and high == len(ids)
                    yield _Stretch(ids=ids[low:high], ends=ends, place=place, character=character)
                token += len(ids)
                if token >= stop:
                    return
            characters = 0 if piece.last else characters + len(piece.text)

    def _text_alone(self, ids: list[int], path: Path | str | None, problem: str) -> Iterator[Passage]:
        """Cut where an end token stands."""
        start = 0
        for at, id in enumerate(ids, 1):
            if id == self._set.end or at == len(ids):
                yield replace(self._passage(ids[start:at], ends=id == self._set.end, path=path), problem=problem)
                start = at

    def _passage(self, ids: list[int], *, ends: bool, path: Path | str | None) -> Passage:
        text = self._tokenizer.decode(ids[:-1] if ends else ids, skip_special_tokens=False)
        return Passage(tokens=len(ids), text=text, ends=ends, file=str(path) if path else None)

    def _read_unit(self, shard: Shard) -> tuple[Provenance, list[int]] | None:
        """With the unit's token that each part begins at."""
        origin = provenance.read(self._set.path, shard)
        if origin is None:
            return None
        return origin, list(accumulate((part.tokens for part in origin.parts), initial=0))[:-1]

    def _source(self, file: DataFile) -> tuple[Path, str | None]:
        """Where it is by now, and what is wrong with it there."""
        if file.path not in self._sources:
            path = file.path if file.path.is_file() else self._moved.get(file.name, file.path)
            self._sources[file.path] = path, _problem(path, file)
        return self._sources[file.path]

    @cached_property
    def _moved(self) -> dict[str, Path]:
        try:
            return {name: path for path, name in discover(self._words)}
        except UserError:
            return {}


def sentences_of(pairs: PairSet, sample: int) -> list[Passage]:
    """Both halves of a pair that is trained on, decoded; where it came from is not kept."""
    row = fields(pairs.train.read(np.array([sample]), pairs.index.length), pairs.index.length)
    real, second = int(row.real_N[0]), int(row.second_N[0])
    file = pairs.tokenizer / TOKENIZER_FILE
    tokenizer = Tokenizer.from_file(str(file)) if file.is_file() else None
    found = []
    for start, stop in ((0, second), (second, real)):
        ids = row.tokens_NL[0, start:stop].tolist()
        text = tokenizer.decode(ids, skip_special_tokens=False) if tokenizer else " ".join(map(str, ids))
        found.append(Passage(tokens=len(ids), text=text, ends=stop == real))
    return [passage for passage in found if passage.tokens]


def _joined(stretches: Iterable[_Stretch]) -> list[_Stretch]:
    """Pieces of one document together."""
    found: list[_Stretch] = []
    for stretch in stretches:
        if found and not found[-1].ends:
            found[-1] = replace(found[-1], ids=found[-1].ids + stretch.ids, ends=stretch.ends)
        else:
            found.append(stretch)
    return found


def _problem(path: Path, file: DataFile) -> str | None:
    if not path.is_file():
        return "it is gone"
    if not os.access(path, os.R_OK):
        return "it cannot be read"
    if stamp_of(path) == file.stamp:
        return None
    with open(path, "rb") as content:
        same = hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    return None if same else "it has changed since it was prepared"
