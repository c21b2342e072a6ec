"""One unit of text into one shard of sentence pairs, by the recipe of the first BERT.

A sample is some sentences of a document, and then either those that follow them or, as often, some of another document
of the unit; of a unit with one document, from elsewhere in it. Together they fill a record, but for one in ten, which
is aimed at some shorter length: so that a model sees such too. All of it is a pure function of the data.
"""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from stoker.data.encode import Advance
from stoker.data.pairs import FACTS, Numbers
from stoker.data.records import PairJob, records
from stoker.data.sentences import sentences
from stoker.data.shards import TOKENIZER_FOLDER
from stoker.data.sources.document import BadRecords
from stoker.data.tokenizer import TOKENIZER_FILE
from stoker.data.units import Unit, pieces
from stoker.data.wordpiece import Words, words_of

SEED = 12345  # of every prepare: the same text gives the same pairs
SHORT = 0.1  # of the samples
AROUND = 3  # [CLS] first [SEP] second [SEP]


class Document(NamedTuple):
    tokens: Numbers
    starts: Numbers
    """Of its sentences; then the end."""

    @property
    def sentences(self) -> int:
        return len(self.starts) - 1

    def part(self, start: int, stop: int) -> Numbers:
        return self.tokens[self.starts[start] : self.starts[stop]]


def encode(job: PairJob, unit: Unit) -> Iterator[Advance]:
    """Make the pairs of a unit, whose files are here, and report as it goes."""
    bad, file = BadRecords(skip=job.skip_bad), job.folder / TOKENIZER_FOLDER / TOKENIZER_FILE
    with records(job, unit) as out:
        documents: list[Document] = []
        size = reported = 0
        for text in _texts(unit, job.field, bad):
            document = _tokenise(file, text)
            if document.sentences:
                documents.append(document)
            size += len(text.encode())
            advance = min(size, unit.size) - reported
            reported += advance
            yield Advance(advance, len(document.tokens))
        for pair in pairs(documents, job.length, random.Random(f"{SEED} {unit.number}")):
            out.add(_record(pair, job.length, _words(file))[None])
        out.finish(documents=len(documents), bytes=size, skipped=bad.skipped)
        yield Advance(unit.size - reported, 0)


class Pair(NamedTuple):
    first: Numbers
    second: Numbers
    random: bool
    """The second does not follow the first."""


def pairs(documents: Sequence[Document], length: int, chance: random.Random) -> Iterator[Pair]:
    room = length - AROUND
    for number, document in enumerate(documents):
        start = 0
        while start < document.sentences:
            target = chance.randint(2, room) if chance.random() < SHORT else room
            stop = start + 1
            while stop < document.sentences and document.starts[stop] - document.starts[start] < target:
                stop += 1
            middle = chance.randint(start + 1, stop - 1) if stop - start > 1 else stop
            first, second = document.part(start, middle), None
            if middle == stop or chance.random() < 0.5:
                second = _elsewhere(documents, number, middle, target - len(first), chance)
            if second is not None:
                start = middle  # what was not used is used next
                yield Pair(*_cut(first, second, room, chance), random=True)
            elif middle < document.sentences:
                start = max(stop, middle + 1)
                yield Pair(*_cut(first, document.part(middle, start), room, chance), random=False)
            else:
                break  # a document alone, of one sentence, has no pairs


def _elsewhere(
    documents: Sequence[Document], number: int, follows: int, tokens: int, chance: random.Random
) -> Numbers | None:
    """Some sentences of about so many tokens, of another document than `number`, or else not its sentence `follows`."""
    other = number
    if len(documents) > 1:
        other = chance.randrange(len(documents) - 1)
        other += other >= number
    document = documents[other]
    allowed = [at for at in (chance.randrange(document.sentences), 0, document.sentences - 1)
               if other != number or at not in (follows, follows - 1)]  # fmt: skip
    if not allowed:
        return None
    start = allowed[0]
    stop = start + 1
    while stop < document.sentences and document.starts[stop] - document.starts[start] < tokens:
        stop += 1
    return document.part(start, stop)


def _cut(first: Numbers, second: Numbers, room: int, chance: random.Random) -> tuple[Numbers, Numbers]:
    """Take tokens off the longer one, at either end, until both fit."""
    low, high = [0, 0], [len(first), len(second)]
    while high[0] - low[0] + high[1] - low[1] > room:
        longer = int(high[1] - low[1] >= high[0] - low[0])
        if chance.random() < 0.5:
            low[longer] += 1
        else:
            high[longer] -= 1
    return first[low[0] : high[0]], second[low[1] : high[1]]


def _record(pair: Pair, length: int, words: Words) -> Numbers:
    row = np.zeros(length + FACTS, np.int64)
    second = len(pair.first) + 2
    real = second + len(pair.second) + 1
    row[0], row[1 : second - 1], row[second - 1] = words.begin, pair.first, words.separator
    row[second : real - 1], row[real - 1] = pair.second, words.separator
    row[length:] = real, second, pair.random
    return row


def _texts(unit: Unit, field: str, bad: BadRecords) -> Iterator[str]:
    """Documents, whole as far as they lie in the unit."""
    held: list[str] = []
    for _, piece in pieces(unit, field, bad):
        held.append(piece.text)
        if piece.last:
            yield "".join(held)
            held = []
    if held:
        yield "".join(held)


def _tokenise(file: Path, text: str) -> Document:
    found = [one.ids for one in _tokenizer(file).encode_batch_fast(sentences(text), add_special_tokens=False)]
    lengths = [len(ids) for ids in found if ids]
    tokens = np.fromiter((id for ids in found for id in ids), np.int64, sum(lengths))
    return Document(tokens.astype(np.uint32), np.cumsum([0, *lengths], dtype=np.int64))


@lru_cache(1)
def _tokenizer(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))


@lru_cache(1)
def _words(file: Path) -> Words:
    return words_of(_tokenizer(file), file)
