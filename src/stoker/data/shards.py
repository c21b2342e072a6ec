"""A prepared token set: a folder of token shards, memory-mapped, and the index that marks it as complete.

    index.json  train-00000.bin …  validation-00000.bin …  provenance/00000.json …  tokenizer/tokenizer.json

The shards of a split are one stream of tokens. index.json is written last: a folder without it is incomplete.
"""

import json
import mmap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from stoker.data.integrity import SetFile, check_hashes, check_sizes
from stoker.data.order import Order, Shuffled, Windowed
from stoker.rundir import write_atomic
from stoker.spec.bounded import read_json
from stoker.spec.errors import UserError

Dtype = Literal["uint16", "uint32"]

VERSION = 1
INDEX_FILE = "index.json"
TOKENIZER_FOLDER = "tokenizer"
MAX_INDEX_BYTES = 256 << 20
OPEN_SHARDS = 128  # each mapping holds a file descriptor, and a process has 1024 of them


class UnreadableSet(UserError):
    """A folder has no token set, or its token set is damaged or of another version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetIndex:
    """What the indexes of token sets and of sets of sentence pairs have in common."""

    key: str
    """The content key: the same data and tokenizer give the same key."""
    dtype: Dtype
    vocab: int
    end: int
    """Id of the token that ends each document."""
    tokenizer: str
    """sha256 of tokenizer/tokenizer.json; empty if it does not exist."""
    trained: int | None
    """The requested size, if the tokenizer was trained on this data."""
    documents: int
    bytes: int
    """Bytes of text, as UTF-8."""
    skipped: int
    """Records that could not be read and were skipped."""
    version: int = VERSION

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each shard's file."""
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        write_atomic(folder / INDEX_FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        try:
            index = TypeAdapter(cls).validate_python(read_index(folder))
        except ValidationError as e:
            raise _damaged(folder) from e
        if any(Path(file).name != file or size < 0 for file, size in index.sizes.items()):
            raise _damaged(folder)  # a shard is in the folder itself
        return index


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Index(SetIndex):
    train: list[Shard] = field(default_factory=list)
    validation: list[Shard] = field(default_factory=list)
    window: int | None = None
    """Tokens per shuffle window, for a set that was prepared as a stream."""

    @property
    def sizes(self) -> dict[str, int]:
        width = np.dtype(self.dtype).itemsize
        return {shard.file: shard.tokens * width for shard in self.train + self.validation}


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a prepared set of any kind, as JSON."""
    try:
        record = read_json(folder / INDEX_FILE, max_bytes=MAX_INDEX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableSet(
            f"{folder} is not a complete token set: it has no {INDEX_FILE}",
            remedy="Its prepare was interrupted: run it again to resume it",
        ) from None
    except ValueError as e:
        raise _damaged(folder) from e
    if not isinstance(record, dict):
        raise _damaged(folder)
    if record.get("version") != VERSION:
        raise UnreadableSet(
            f"{folder} is a token set of version {record.get('version')}, and this stoker reads version {VERSION}",
            remedy="Prepare the data again into another folder",
        )
    return record


def _damaged(folder: Path) -> UnreadableSet:
    return UnreadableSet(f"{folder / INDEX_FILE} is damaged", remedy="Delete the folder and prepare it again")


class MappedShards:
    """The shards of a split, each memory-mapped when it is first read."""

    def __init__(self, files: list[SetFile], dtype: Dtype) -> None:
        self._files = files
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shard = lru_cache(OPEN_SHARDS)(self._map)
        self._checks = False

    def files(self) -> list[SetFile]:
        """The files that exist so far."""
        return list(self._files)

    def check_when_read(self) -> None:
        """Checks each shard's hash before its first use: for readers that can afford the time."""
        self._checks = True

    def _map(self, shard: int) -> NDArray[Any]:
        if self._checks:
            check_hashes([self._files[shard]])
        with open(self._files[shard].path, "rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), self._dtype)


class Split(MappedShards):
    """One stream of tokens over several shards, read at random."""

    def __init__(self, folder: Path, shards: list[Shard], dtype: Dtype, *, window: int | None = None) -> None:
        super().__init__([], dtype)
        self.window = window
        self.tokens = 0
        self._folder = folder
        self._shards: list[Shard] = []
        self._ends = np.empty(0, np.int64)
        self._add(shards)

    def _add(self, shards: list[Shard]) -> None:
        ends = self.tokens + np.cumsum([shard.tokens for shard in shards], dtype=np.int64)
        self._shards += shards
        self._files += [
            SetFile(
                folder=self._folder,
                file=shard.file,
                bytes=shard.tokens * self._dtype.itemsize,
                sha256=shard.sha256,
            )
            for shard in shards
        ]
        self._ends = np.append(self._ends, ends)
        self.tokens = int(self._ends[-1]) if len(self._ends) else 0

    def samples(self, length: int) -> int:
        """Sample i is tokens[i * length : (i + 1) * length + 1]: neighbours share one token."""
        return max(0, (self.tokens - 1) // length)

    def order(self, seed: int, length: int) -> Order:
        if self.window is not None:
            return Windowed(seed, self.samples(length), max(1, self.window // length))
        return Shuffled(seed, self.samples(length))

    def width(self, length: int) -> int:
        """Length of a sample's row."""
        return length + 1

    def read(self, ids: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """The tokens of these samples, one row each, of length + 1."""
        rows = np.empty((len(ids), length + 1), np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.samples(length):
            raise IndexError(f"sample ids go from {ids.min()} to {ids.max()}, and there are {self.samples(length)}")
        starts = ids * length
        shards = np.searchsorted(self._ends, starts, side="right")
        for row, start, shard in zip(rows, starts.tolist(), shards.tolist(), strict=True):
            self._fill(row, start, shard)
        return rows

    def tail(self, length: int) -> NDArray[np.int64] | None:
        """The shorter row after the last sample; None if it has nothing to predict."""
        start = self.samples(length) * length
        if self.tokens - 1 <= start:
            return None
        return np.concatenate([tokens for _, _, tokens in self.stretches(start, self.tokens)]).astype(np.int64)

    def stretches(self, start: int, stop: int) -> Iterator[tuple[Shard, int, NDArray[Any]]]:
        """Tokens start..stop-1, shard by shard: the shard, where in it they begin, and the tokens."""
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            tokens = self._shard(number)
            offset = start - (int(self._ends[number]) - len(tokens))
            stretch = tokens[offset : offset + stop - start]
            yield self._shards[number], offset, stretch
            start, number = start + len(stretch), number + 1

    def _fill(self, row: NDArray[np.int64], start: int, shard: int) -> None:
        filled = 0
        while filled < len(row):
            tokens = self._shard(shard)
            offset = start + filled - (int(self._ends[shard]) - len(tokens))
            piece = tokens[offset : offset + len(row) - filled]
            row[filled : filled + len(piece)] = piece
            filled += len(piece)
            shard += 1


class PreparedSet:
    """What token sets and sets of sentence pairs have in common."""

    train: MappedShards
    validation: MappedShards

    def __init__(self, path: Path, index: SetIndex) -> None:
        self.path = path
        self.key = index.key
        self.vocab = index.vocab
        self.end = index.end
        self.tokenizer = path / TOKENIZER_FOLDER

    @property
    def whole(self) -> bool:
        """Whether its size is final."""
        return True

    def problem(self) -> UserError | None:
        """Why a set that should grow does not."""
        return None

    def files(self) -> list[SetFile]:
        """The files that training depends on."""
        return self.train.files() + self.validation.files()

    def verify(self) -> None:
        """Reads every file and compares its hash with the index."""
        check_hashes(self.files())


class TokenSet(PreparedSet):
    train: Split
    validation: Split

    def __init__(self, path: Path, index: Index) -> None:
        super().__init__(path, index)
        self.index = index
        self.train = Split(path, index.train, index.dtype, window=index.window)
        self.validation = Split(path, index.validation, index.dtype)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Checks only the size of each shard."""
        index = Index.read(path)
        check_sizes(path, index.sizes)
        return cls(path, index)
