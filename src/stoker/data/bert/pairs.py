"""A prepared set of sentence pairs: a folder of records of one width, memory-mapped, and the index.

    index.json  train-00000.bin …  validation-00000.bin …  tokenizer/tokenizer.json

A record is a sample: the tokens of both sentences, padded with zeros to the length of the set; how many of them are
real; where the second sentence begins; whether it does not follow the first (1) or does (0); and, in a set whose masks
were drawn when it was made, the masked positions and their original words, each list padded with zeros. No word is
masked at place 0. As in a token set index.json is written last.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from stoker.data.integrity import SetFile, check_sizes
from stoker.data.order import Order, Shuffled
from stoker.data.shards import TOKENIZER_FOLDER, MappedShards, PreparedSet, SetIndex
from stoker.data.tokenizer import TOKENIZER_FILE
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


def record_width(length: int, predictions: int) -> int:
    return length + FACTS + 2 * predictions


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
class PairIndex(SetIndex):
    length: Annotated[int, Field(ge=1)]
    """Tokens in a record."""
    predictions: Annotated[int, Field(ge=0)]
    """Masked positions per record; 0 if they are drawn during training."""
    train: list[PairShard] = field(default_factory=list)
    validation: list[PairShard] = field(default_factory=list)
    kind: Literal["pairs"] = "pairs"

    @property
    def width(self) -> int:
        return record_width(self.length, self.predictions)

    @property
    def sizes(self) -> dict[str, int]:
        return {shard.file: self.size(shard) for shard in self.train + self.validation}

    def size(self, shard: PairShard) -> int:
        """Bytes of a shard's file."""
        return shard.records * self.width * np.dtype(self.dtype).itemsize


class PairSplit(MappedShards):
    """Records over several shards, read at random."""

    def __init__(self, folder: Path, shards: list[PairShard], index: PairIndex) -> None:
        files = [
            SetFile(folder=folder, file=shard.file, bytes=index.size(shard), sha256=shard.sha256) for shard in shards
        ]
        super().__init__(files, index.dtype)
        self._folder, self._index = folder, index
        self._ends = np.cumsum([shard.records for shard in shards], dtype=np.int64)
        self.records = int(self._ends[-1]) if shards else 0
        self.tokens = sum(shard.tokens for shard in shards)

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

    def _map(self, shard: int) -> NDArray[Any]:
        return super()._map(shard).reshape(-1, self._index.width)


class PairSet(PreparedSet):
    train: PairSplit
    validation: PairSplit

    def __init__(self, path: Path, index: PairIndex) -> None:
        super().__init__(path, index)
        self.index = index
        self.train = PairSplit(path, index.train, index)
        self.validation = PairSplit(path, index.validation, index)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Checks only the size of each shard."""
        index = PairIndex.read(path)
        check_sizes(path, index.sizes)
        return cls(path, index)

    def files(self) -> list[SetFile]:
        """The masks depend on the tokenizer too."""
        file = self.tokenizer / TOKENIZER_FILE
        size = file.stat().st_size if file.is_file() else 0
        tokenizer = SetFile(
            folder=self.path, file=f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}", bytes=size, sha256=self.index.tokenizer
        )
        return super().files() + ([tokenizer] if self.index.tokenizer else [])
