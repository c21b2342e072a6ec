"""A stream as the trainer reads it: a token set that grows. Reading waits for missing tokens."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from stoker.data.integrity import check_sizes
from stoker.data.order import Drawn, Order, Windowed
from stoker.data.shards import Dtype, Shard, Split, TokenSet
from stoker.data.stream.journal import Header, Journal, index_of, read_error
from stoker.spec.errors import UserError

POLL_S = 0.1


class Feeding(Protocol):
    def want(self, tokens: int) -> None:
        """Called with the number of tokens needed now."""


class Abandoned(UserError):
    """The wait for more tokens was ended, or would never end."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} does not have that much yet", remedy="Resume the run that prepares it")


class StreamSplit(Split):
    def __init__(self, folder: Path, shards: list[Shard], dtype: Dtype, *, window: int, journal: Journal) -> None:
        super().__init__(folder, shards, dtype, window=window)
        self._journal = journal
        self._seen = len(journal.entries)
        self._stopped = threading.Event()
        self.feeder: Feeding | None = None
        """On one of the workers; gets the number of tokens needed."""

    @property
    def ended(self) -> bool:
        return self._journal.ended

    def order(self, seed: int, length: int) -> Order:
        return _Following(self, seed, length)

    def await_samples(self, samples: int, length: int) -> int:
        """Waits for this many samples, or the end of the stream; returns the number of samples."""
        while True:
            self._refresh()
            if self.feeder:
                self.feeder.want(samples * length + 1)
            if self.ended or self.samples(length) >= samples:
                return self.samples(length)
            if problem := read_error(self._folder):
                raise problem
            if self._stopped.wait(POLL_S):
                raise Abandoned(self._folder)

    def abandon(self) -> None:
        """Ends the waiting of other threads."""
        self._stopped.set()

    def _refresh(self) -> None:
        self._journal.refresh()
        self._add([entry.train for entry in self._journal.entries[self._seen :] if entry.train.tokens])
        self._seen = len(self._journal.entries)


@dataclass(frozen=True, slots=True)
class _Following:
    split: StreamSplit
    seed: int
    length: int

    def draw(self, start: int, stop: int) -> Drawn:
        assert self.split.window is not None
        window = max(1, self.split.window // self.length)
        available = self.split.await_samples(-(-stop // window) * window, self.length)
        return Windowed(self.seed, available, window).draw(start, stop)


class StreamSet(TokenSet):
    train: StreamSplit

    @classmethod
    def open(cls, path: Path) -> Self:
        header, journal = Header.read(path), Journal(path)
        journal.refresh()
        tokens = cls(path, index_of(header, journal))
        check_sizes(path, tokens.index.sizes)
        window = header.data.window
        tokens.train = StreamSplit(path, tokens.index.train, header.dtype, window=window, journal=journal)
        return tokens

    @property
    def whole(self) -> bool:
        return self.train.ended

    def problem(self) -> UserError | None:
        return read_error(self.path)
