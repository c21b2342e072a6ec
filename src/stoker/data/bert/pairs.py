"""A prepared set of sentence pairs: a folder of records of one width, memory-mapped, and the index.

    index.json  train-00000.bin …  validation-00000.bin …  tokenizer/tokenizer.json

A record is a sample: the tokens of both sentences, padded with zeros to the length of the set; how many of them are
real; where the second sentence begins; whether it does not follow the first (1) or does (0); and, in a set whose masks
were drawn when it was made, the masked positions and their original words, each list padded with zeros. No word is
masked at place 0. As in a token set index.json is written last.
"""

import json
import mmap
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stoker.data.integrity import SetFile, check_hashes, check_sizes
from stoker.data.order import Order, Shuffled
from stoker.data.shards import INDEX_FILE, OPEN_SHARDS, TOKENIZER_FOLDER, VERSION, Dtype, Index
from stoker.data.tokenizer import TOKENIZER_FILE
from stoker.rundir import write_atomic
from stoker.spec.errors import UserError

KIND = "pairs"
FACTS = 3  # real, second, label
Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """The settings that sentence pairs are prepared for."""

    length: int
    vocab: int | None = None
    """For HDF5 files without a tokenizer."""


class Fields(NamedTuple):
    """The fields of records, row by row."""

    tokens_NL: Numbers
    real_N: Numbers
    second_N: Numbers
    label_N: Numbers
    positions_NP: Numbers
    ids_NP: Numbers


def fields(rows: Numbers, length: int) -> Fields:
    facts, rest = rows[:, length : length + FACTS], rows[:, length + FACTS :]
    positions, ids = np.split(rest, 2, axis=1)
    return Fields(rows[:, :length], facts[:, 0], facts[:, 1], facts[:, 2], positions, ids)


def join(rows: Fields) -> Numbers:
    facts = np.stack([rows.real_N, rows.second_N, rows.label_N], axis=1)
    return np.concatenate([rows.tokens_NL, facts, rows.positions_NP, rows.ids_NP], axis=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairShard:
    file: str
    records: int
    tokens: int
    """Tokens that are not padding."""
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PairIndex:
    key: str
    dtype: Dtype
    vocab: int
    end: int
    tokenizer: str
    """sha256 of tokenizer/tokenizer.json; empty if it does not exist."""
    trained: int | None
    documents: int
    bytes: int
    skipped: int
    length: int
    """Tokens in a record."""
    predictions: int
    """Masked positions per record; 0 if they are drawn during training."""
    train: list[PairShard] = field(default_factory=list)
    validation: list[PairShard] = field(default_factory=list)
    version: int = VERSION
    kind: Literal["pairs"] = "pairs"

    @property
    def width(self) -> int:
        return self.length + FACTS + 2 * self.predictions

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each shard's file."""
        width = self.width * np.dtype(self.dtype).itemsize
        return {shard.file: shard.records * width for shard in self.train + self.validation}

    def write(self, folder: Path) -> None:
        write_atomic(folder / INDEX_FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        record = Index.record(folder)
        for split in ("train", "validation"):
            record[split] = [PairShard(**shard) for shard in record[split]]
        return cls(**record)


class PairSplit:
    """Records over several shards, read at random."""

    def __init__(self, folder: Path, shards: list[PairShard], index: PairIndex) -> None:
        self._folder, self._index, self._shards = folder, index, shards
        self._ends = np.cumsum([shard.records for shard in shards], dtype=np.int64)
        self._shard = lru_cache(OPEN_SHARDS)(self._map)
        self._checks = False
        self.records = int(self._ends[-1]) if shards else 0
        self.tokens = sum(shard.tokens for shard in shards)

    def files(self) -> list[SetFile]:
        return [self._file(shard) for shard in self._shards]

    def check_when_read(self) -> None:
        """Checks each shard's hash before its first use: for readers that can afford the time."""
        self._checks = True

    def samples(self, length: int) -> int:
        self._check(length)
        return self.records

    def order(self, seed: int, length: int) -> Order:
        return Shuffled(seed, self.samples(length))

    def width(self, length: int) -> int:
        self._check(length)
        return self._index.width

    def read(self, ids: Numbers, length: int) -> Numbers:
        """One row per sample; `fields` splits them."""
        rows = np.empty((len(ids), self.width(length)), np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.records:
            raise IndexError(f"sample ids go from {ids.min()} to {ids.max()}, and there are {self.records}")
        shards = np.searchsorted(self._ends, ids, side="right")
        for row, id, shard in zip(rows, ids.tolist(), shards.tolist(), strict=True):
            records = self._shard(shard)
            row[:] = records[id - (int(self._ends[shard]) - len(records))]
        return rows

    def _check(self, length: int) -> None:
        if length != self._index.length:
            raise UserError(
                f"{self._folder} has sentence pairs of {self._index.length} tokens, not of {length}",
                remedy=f"Set batch.length to {self._index.length}, or name the text in data.path to prepare it again",
            )

    def _file(self, shard: PairShard) -> SetFile:
        size = shard.records * self._index.width * np.dtype(self._index.dtype).itemsize
        return SetFile(folder=self._folder, file=shard.file, bytes=size, sha256=shard.sha256)

    def _map(self, shard: int) -> NDArray[Any]:
        file_of_set = self._file(self._shards[shard])
        if self._checks:
            check_hashes([file_of_set])
        with open(file_of_set.path, "rb") as file:
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(held, np.dtype(self._index.dtype).newbyteorder("<")).reshape(-1, self._index.width)


class PairSet:
    def __init__(self, path: Path, index: PairIndex) -> None:
        self.path = path
        self.index = index
        self.key = index.key
        self.vocab = index.vocab
        self.end = index.end
        self.tokenizer = path / TOKENIZER_FOLDER
        self.train = PairSplit(path, index.train, index)
        self.validation = PairSplit(path, index.validation, index)

    @property
    def whole(self) -> bool:
        return True

    def problem(self) -> UserError | None:
        return None

    @classmethod
    def open(cls, path: Path) -> Self:
        index = PairIndex.read(path)
        check_sizes(path, index.sizes)
        return cls(path, index)

    def files(self) -> list[SetFile]:
        """The files that training depends on: the masks depend on the tokenizer."""
        file = self.tokenizer / TOKENIZER_FILE
        size = file.stat().st_size if file.is_file() else 0
        tokenizer = SetFile(
            folder=self.path, file=f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}", bytes=size, sha256=self.index.tokenizer
        )
        return self.train.files() + self.validation.files() + ([tokenizer] if self.index.tokenizer else [])

    def verify(self) -> None:
        """Reads every shard and compares its hash with the index."""
        check_hashes(self.files())
