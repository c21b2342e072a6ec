"""Finds the documents that tokens were made from, by reading the sources again."""

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
from stoker.data.bert.pairs import PairSet, fields
from stoker.data.files import DataFile, NoText, discover, stamp_of
from stoker.data.provenance import Provenance, ProvenancePart
from stoker.data.shards import Shard, TokenSet
from stoker.data.sources import source_of
from stoker.data.sources.document import BadRecords
from stoker.data.tokenizer import TOKENIZER_FILE
from stoker.spec.files import NotRegularFile

CACHED_UNITS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """Consecutive tokens of one document."""

    tokens: int
    text: str
    """Decoded from the tokens, without the end token."""
    ends: bool
    """The document ends here."""
    file: str | None = None
    counts: str | None = None
    """The unit of `place`: byte (from 0), line, record or row (from 1)."""
    place: int | None = None
    character: int = 0
    """Characters of the record before the passage."""
    problem: str | None = None
    """Why file or place is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stretch:
    ids: list[int]
    ends: bool
    place: int
    character: int


class Passages:
    """The passages of a training split. A file that has moved is looked for in `locations`, as in data.path."""

    def __init__(self, tokens: TokenSet, locations: list[str]) -> None:
        self._set, self._locations = tokens, locations
        self._tokenizer = Tokenizer.from_file(str(tokens.tokenizer / TOKENIZER_FILE))
        self._unit = lru_cache(CACHED_UNITS)(self._read_unit)
        self._before = lru_cache(CACHED_UNITS)(lambda format, path, span: source_of(format).before(path, span))
        self._sources: dict[Path, tuple[Path, str | None]] = {}

    def of(self, start: int, stop: int) -> list[Passage]:
        """The passages of tokens start..stop-1."""
        passages: list[Passage] = []
        for shard, offset, tokens in self._set.train.stretches(start, stop):
            passages += self._in_shard(shard, offset, tokens.tolist())
        return passages

    def _in_shard(self, shard: Shard, offset: int, ids: list[int]) -> Iterator[Passage]:
        unit = self._unit(shard)
        if unit is None:
            yield from self._decode_only(ids, None, "the token set was made without a record of its sources")
            return
        origin, starts = unit
        for number in range(bisect_right(starts, offset) - 1, len(origin.parts)):
            part, first = origin.parts[number], starts[number]
            low, high = max(offset, first), min(offset + len(ids), first + part.tokens)
            if low < high:
                yield from self._in_part(part, origin.field, low - first, ids[low - offset : high - offset])
            if high == offset + len(ids):
                return

    def _in_part(self, part: ProvenancePart, field: str, start: int, ids: list[int]) -> Iterator[Passage]:
        if part.file.url:
            yield from self._decode_only(ids, part.file.url, "only its tokens were kept here")
            return
        path, problem = self._source(part.file)
        if problem is None:
            stretches = _joined(self._read_again(path, part, field, start, start + len(ids)))
            if [id for stretch in stretches for id in stretch.ids] == ids:
                for stretch in stretches:
                    passage = self._passage(stretch.ids, ends=stretch.ends, path=path)
                    counts = source_of(part.file.format).COUNTS
                    yield replace(passage, counts=counts, place=stretch.place, character=stretch.character)
                return
            problem = "its text no longer gives the tokens of the set"
        yield from self._decode_only(ids, path, problem)

    def _read_again(self, path: Path, part: ProvenancePart, field: str, start: int, stop: int) -> Iterator[_Stretch]:
        """Tokens start..stop-1 of a part, piece by piece, tokenized again from the source."""
        reader = source_of(part.file.format)
        before: int = self._before(part.file.format, path, part.span)
        skip, token = part.mark(start)
        characters = 0  # of the document before the piece
        for number, piece in enumerate(reader.pieces(path, part.span, field, BadRecords(skip=True))):
            if number >= skip:
                encoding = self._tokenizer.encode(piece.text, add_special_tokens=False)
                ids = encoding.ids + [self._set.end] * (piece.last and bool(characters or piece.text))
                low, high = max(start - token, 0), min(stop - token, len(ids))
                if low < high:
                    at = encoding.offsets[low][0] if low < len(encoding.ids) else len(piece.text)
                    place, character = before + piece.place, characters + at
                    if reader.COUNTS == "byte":
                        place, character = place + len(piece.text[:at].encode()), 0
                    ends = piece.last and high == len(ids)
                    yield _Stretch(ids=ids[low:high], ends=ends, place=place, character=character)
                token += len(ids)
                if token >= stop:
                    return
            characters = 0 if piece.last else characters + len(piece.text)

    def _decode_only(self, ids: list[int], path: Path | str | None, problem: str) -> Iterator[Passage]:
        """Passages without a place in a source: the tokens, split at end tokens and decoded."""
        start = 0
        for at, id in enumerate(ids, 1):
            if id == self._set.end or at == len(ids):
                yield replace(self._passage(ids[start:at], ends=id == self._set.end, path=path), problem=problem)
                start = at

    def _passage(self, ids: list[int], *, ends: bool, path: Path | str | None) -> Passage:
        text = self._tokenizer.decode(ids[:-1] if ends else ids, skip_special_tokens=False)
        return Passage(tokens=len(ids), text=text, ends=ends, file=str(path) if path else None)

    def _read_unit(self, shard: Shard) -> tuple[Provenance, list[int]] | None:
        """The parts of a unit, and the first token of each."""
        origin = provenance.read(self._set.path, shard)
        if origin is None:
            return None
        return origin, list(accumulate((part.tokens for part in origin.parts), initial=0))[:-1]

    def _source(self, file: DataFile) -> tuple[Path, str | None]:
        """Where the file is now, and its problem, if any."""
        if file.path not in self._sources:
            path = file.path if file.path.is_file() else self._moved.get(file.name, file.path)
            self._sources[file.path] = path, _problem(path, file)
        return self._sources[file.path]

    @cached_property
    def _moved(self) -> dict[str, Path]:
        try:
            return {name: path for path, name in discover(self._locations)}
        except (NoText, NotRegularFile):
            return {}


def sentences_of(pairs: PairSet, sample: int) -> list[Passage]:
    """Both sentences of a training pair, decoded; their origin is not recorded."""
    row = fields(pairs.train.read(np.array([sample]), pairs.index.length), pairs.index.length)
    real, second = int(row.real_N[0]), int(row.second_N[0])
    file = pairs.tokenizer / TOKENIZER_FILE
    tokenizer = Tokenizer.from_file(str(file)) if file.is_file() else None
    passages = []
    for start, stop in ((0, second), (second, real)):
        ids = row.tokens_NL[0, start:stop].tolist()
        text = tokenizer.decode(ids, skip_special_tokens=False) if tokenizer else " ".join(map(str, ids))
        passages.append(Passage(tokens=len(ids), text=text, ends=stop == real))
    return [passage for passage in passages if passage.tokens]


def _joined(stretches: Iterable[_Stretch]) -> list[_Stretch]:
    """Joins the pieces of one document."""
    joined: list[_Stretch] = []
    for stretch in stretches:
        if joined and not joined[-1].ends:
            joined[-1] = replace(joined[-1], ids=joined[-1].ids + stretch.ids, ends=stretch.ends)
        else:
            joined.append(stretch)
    return joined


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
