"""Turns one work unit into one shard of sentence pairs, as in the original BERT.

A sample is some sentences of a document, and then either those that follow them or, as often, some of another document
of the unit; in a unit with one document, from another part of it. Together they fill a record, except one in ten,
which has a shorter target length. All of it is a pure function of the data.
"""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from stoker.data.bert.pairs import FACTS, Numbers
from stoker.data.bert.records import PairJob, records
from stoker.data.bert.sentences import sentences
from stoker.data.encode import Advance
from stoker.data.files import stamp_of
from stoker.data.shards import TOKENIZER_FOLDER
from stoker.data.sources.document import BadRecords
from stoker.data.tokenizer import TOKENIZER_FILE
from stoker.data.wordpiece import MaskingVocabulary, masking_vocabulary
from stoker.data.work_units import Unit, pieces

SEED = 12345  # of every prepare: the same text gives the same pairs
SHORT_SHARE = 0.1  # of the samples: they have a shorter target length
SPECIAL_TOKENS = 3  # of a record: [CLS] first [SEP] second [SEP]


class SentenceDocument(NamedTuple):
    tokens: Numbers
    starts: Numbers
    """Offsets of its sentences, and the end."""

    @property
    def sentences(self) -> int:
        return len(self.starts) - 1

    def part(self, start: int, stop: int) -> Numbers:
        return self.tokens[self.starts[start] : self.starts[stop]]


def encode(job: PairJob, unit: Unit) -> Iterator[Advance]:
    """Writes the pairs of a unit, whose files are local, and yields progress."""
    bad, file = BadRecords(skip=job.skip_bad), job.folder / TOKENIZER_FOLDER / TOKENIZER_FILE
    tokenizer, vocabulary = _tokenizer(file, tuple(stamp_of(file)))
    with records(job, unit) as out:
        documents: list[SentenceDocument] = []
        size = reported = 0
        for text in _texts(unit, job.field, bad):
            document = _tokenise(tokenizer, text)
            if document.sentences:
                documents.append(document)
            size += len(text.encode())
            advance = min(size, unit.size) - reported
            reported += advance
            yield Advance(advance, len(document.tokens))
        for pair in pairs(documents, job.length, random.Random(f"{SEED} {unit.number}")):
            out.add(_record(pair, job.length, vocabulary)[None])
        out.finish(documents=len(documents), bytes=size, skipped=bad.skipped)
        yield Advance(unit.size - reported, 0)


class Pair(NamedTuple):
    first: Numbers
    second: Numbers
    random: bool
    """The second does not follow the first."""


def pairs(documents: Sequence[SentenceDocument], length: int, rng: random.Random) -> Iterator[Pair]:
    max_tokens = length - SPECIAL_TOKENS
    for number, document in enumerate(documents):
        start = 0
        while start < document.sentences:
            target = rng.randint(2, max_tokens) if rng.random() < SHORT_SHARE else max_tokens
            stop = start + 1
            while stop < document.sentences and document.starts[stop] - document.starts[start] < target:
                stop += 1
            middle = rng.randint(start + 1, stop - 1) if stop - start > 1 else stop
            first, second = document.part(start, middle), None
            if middle == stop or rng.random() < 0.5:
                second = _random_sentences(documents, number, middle, target - len(first), rng)
            if second is not None:
                start = middle  # unused sentences come next
                yield Pair(*_cut(first, second, max_tokens, rng), random=True)
            elif middle < document.sentences:
                start = max(stop, middle + 1)
                yield Pair(*_cut(first, document.part(middle, start), max_tokens, rng), random=False)
            else:
                break  # a single document of one sentence has no pairs


def _random_sentences(
    documents: Sequence[SentenceDocument], number: int, follows: int, tokens: int, rng: random.Random
) -> Numbers | None:
    """About `tokens` tokens from another document than `number`; of a single document, not from sentence `follows`."""
    chosen = number
    if len(documents) > 1:
        chosen = rng.randrange(len(documents) - 1)
        chosen += chosen >= number
    document = documents[chosen]
    allowed = [at for at in (rng.randrange(document.sentences), 0, document.sentences - 1)
               if chosen != number or at not in (follows, follows - 1)]  # fmt: skip
    if not allowed:
        return None
    start = allowed[0]
    stop = start + 1
    while stop < document.sentences and document.starts[stop] - document.starts[start] < tokens:
        stop += 1
    return document.part(start, stop)


def _cut(first: Numbers, second: Numbers, max_tokens: int, rng: random.Random) -> tuple[Numbers, Numbers]:
    """Removes tokens from the longer sentence, at either end, until both fit."""
    low, high = [0, 0], [len(first), len(second)]
    while high[0] - low[0] + high[1] - low[1] > max_tokens:
        longer = int(high[1] - low[1] >= high[0] - low[0])
        if rng.random() < 0.5:
            low[longer] += 1
        else:
            high[longer] -= 1
    return first[low[0] : high[0]], second[low[1] : high[1]]


def _record(pair: Pair, length: int, vocabulary: MaskingVocabulary) -> Numbers:
    row = np.zeros(length + FACTS, np.int64)
    second = len(pair.first) + 2
    real = second + len(pair.second) + 1
    row[0], row[1 : second - 1], row[second - 1] = vocabulary.begin, pair.first, vocabulary.separator
    row[second : real - 1], row[real - 1] = pair.second, vocabulary.separator
    row[length:] = real, second, pair.random
    return row


def _texts(unit: Unit, field: str, bad: BadRecords) -> Iterator[str]:
    """The documents of the unit."""
    held: list[str] = []
    for _, piece in pieces(unit, field, bad):
        held.append(piece.text)
        if piece.last:
            yield "".join(held)
            held = []
    if held:
        yield "".join(held)


def _tokenise(tokenizer: Tokenizer, text: str) -> SentenceDocument:
    sentence_ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(sentences(text), add_special_tokens=False)]
    lengths = [len(ids) for ids in sentence_ids if ids]
    tokens = np.fromiter((id for ids in sentence_ids for id in ids), np.int64, sum(lengths))
    return SentenceDocument(tokens.astype(np.uint32), np.cumsum([0, *lengths], dtype=np.int64))


@lru_cache(1)
def _tokenizer(file: Path, stamp: tuple[int, ...]) -> tuple[Tokenizer, MaskingVocabulary]:  # noqa: ARG001 (a cache key)
    """Loaded once for all units. A prepare of other data in the same folder has another tokenizer there."""
    tokenizer = Tokenizer.from_file(str(file))
    return tokenizer, masking_vocabulary(tokenizer, file)
