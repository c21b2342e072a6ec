"""A stream as a trainer sees it: a token set that grows. What is not there yet is waited for."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from stoker.data.intact import check_sizes
from stoker.data.order import Drawn, Order, Windowed
from stoker.data.shards import Shard, Split, TokenSet
from stoker.data.stream.journal import Header, Journal, index_of, read_error
from stoker.spec.errors import UserError

POLL = 0.1  # seconds between two looks at the journal


class Feeding(Protocol):
    def want(self, tokens: int) -> None:
        """So many tokens are needed now."""


class Abandoned(UserError):
    """Nobody waits for it, or nobody should."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} does not have that much yet", remedy="Go on with the run that it is made for")


class StreamSplit(Split):
    def __init__(
        self, folder: Path, shards: list[Shard], dtype: np.dtype[Any], *, window: int, journal: Journal
    ) -> None:
        super().__init__(folder, shards, dtype, window=window)
        self._folder, self._journal = folder, journal
        self._seen = len(journal.entries)
        self._stopped = threading.Event()
        self.feeder: Feeding | None = None
        """Told of what is needed; of several workers, by one."""

    @property
    def ended(self) -> bool:
        return self._journal.ended

    def order(self, seed: int, length: int) -> Order:
        return _Following(self, seed, length)

    def await_samples(self, samples: int, length: int) -> int:
        """Wait until there are so many, or all there will ever be; returns how many there are."""
        while True:
            self._refresh()
            if self.feeder:
                self.feeder.want(samples * length + 1)
            if self.ended or self.samples(length) >= samples:
                return self.samples(length)
            if problem := read_error(self._folder):
                raise problem
            if self._stopped.wait(POLL):
                raise Abandoned(self._folder)

    def abandon(self) -> None:
        """End the waiting of other threads."""
        self._stopped.set()

    def _refresh(self) -> None:
        self._journal.refresh()
        fresh = [entry.train for entry in self._journal.entries[self._seen :] if entry.train.tokens]
        self._seen = len(self._journal.entries)
        if fresh:
            self._shards += fresh
            self._paths += [self._folder / shard.file for shard in fresh]
            self._ends = np.append(
                self._ends, self.tokens + np.cumsum([shard.tokens for shard in fresh], dtype=np.int64)
            )
            self.tokens = int(self._ends[-1])


@dataclass(frozen=True, slots=True)
class _Following:
    split: StreamSplit
    seed: int
    length: int

    def draw(self, start: int, stop: int) -> Drawn:
        assert self.split.window is not None
        window = max(1, self.split.window // self.length)
        there = self.split.await_samples(-(-stop // window) * window, self.length)
        return Windowed(self.seed, there, window).draw(start, stop)


class StreamSet(TokenSet):
    train: StreamSplit

    @classmethod
    def open(cls, path: Path) -> Self:
        header, journal = Header.read(path), Journal(path)
        journal.refresh()
        tokens = cls(path, index_of(header, journal))
        check_sizes(path, tokens.index.sizes)
        dtype = np.dtype(header.dtype).newbyteorder("<")
        tokens.train = StreamSplit(path, tokens.index.train, dtype, window=header.data.window, journal=journal)
        return tokens

    @property
    def whole(self) -> bool:
        return self.train.ended

    def problem(self) -> UserError | None:
        return read_error(self.path)
