"""The rows of each step for one worker, read one step ahead."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker.data import order
from stoker.data.pairs import AnySplit
from stoker.data.stream.reading import StreamSplit
from stoker.spec.derive import share
from stoker.spec.errors import UserError
from stoker.train.dist import Ranks

PATIENCE = 1.0  # seconds after which a batch is late


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    step: int
    samples: NDArray[np.int64]
    """Ids of this worker's share."""
    epochs: NDArray[np.int64]
    """How often each of them has been used before."""
    rows: Tensor
    """One row a sample, as the split gives it, padded with zero rows to whole micro-batches."""

    @property
    def live(self) -> int:
        return len(self.samples)


def held_out(rows: Tensor, samples: NDArray[np.int64] | None = None) -> Batch:
    """Rows that are not trained on: the same each time."""
    ids = np.arange(len(rows)) if samples is None else samples
    return Batch(step=0, samples=ids, epochs=np.zeros(len(rows), np.int64), rows=rows)


class Batches:
    def __init__(
        self,
        split: AnySplit,
        me: Ranks,
        *,
        seed: int,
        sequences: int,
        length: int,
        rows: int,
        positions: int | None,
        since: tuple[int, int],
    ) -> None:
        self.split, self.me, self.since = split, me, since
        self.sequences, self.length, self.rows, self.positions = sequences, length, rows, positions
        self.order = split.order(seed, length)
        self.waited_s = 0.0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ahead: Future[Batch] | None = None
        self._lost = False
        self.problem: UserError | None = None
        """Why there are no more."""

    def get(self, step: int, *, late: Callable[[], bool] = lambda: False) -> Batch | None:
        """The batch of `step`; the one after it starts being read.

        `late` is asked now and then while it is waited for, and says whether to give it up. Given up, or not to be
        had, it is None.
        """
        began = time.perf_counter()
        batch = self._wait(self._ahead, late) if self._ahead else None
        if batch is None and not self._lost:
            batch = self._wait(self._reader.submit(self.read, step), late)
        self.waited_s += time.perf_counter() - began
        if batch is not None:
            assert batch.step == step, "steps are asked for in their order"
            self._ahead = self._reader.submit(self.read, step + 1)
        return batch

    def close(self) -> None:
        """What is being read is waited for, and what is not there yet is not."""
        if isinstance(self.split, StreamSplit):
            self.split.abandon()
        self._reader.shutdown(cancel_futures=True)

    def _wait(self, batch: Future[Batch], late: Callable[[], bool]) -> Batch | None:
        while not self._lost:
            try:
                return batch.result(timeout=PATIENCE)
            except TimeoutError:
                self._lost = late()
            except UserError as e:
                self._lost, self.problem = True, e
        return None

    def read(self, step: int) -> Batch:
        drawn = order.batch(self.order, sequences=self.sequences, step=step, positions=self.positions, since=self.since)
        mine = share(len(drawn.ids), rank=self.me.rank, world=self.me.world)
        samples, epochs = drawn.ids[mine.start : mine.stop], drawn.epochs[mine.start : mine.stop]
        rows = torch.zeros(self.rows, self.split.width(self.length), dtype=torch.int64)
        rows[: len(samples)] = torch.from_numpy(self.split.read(samples, self.length))
        return Batch(step=step, samples=samples, epochs=epochs, rows=rows)
