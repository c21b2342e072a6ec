"""The rows of each step for one worker, read one step ahead."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker.data import order
from stoker.data.pairs import AnySplit
from stoker.spec.derive import share
from stoker.train.dist import Ranks


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

    def get(self, step: int) -> Batch:
        """The batch of `step`; the one after it starts being read."""
        began = time.perf_counter()
        batch = self._ahead.result() if self._ahead else None
        if batch is None or batch.step != step:
            batch = self.read(step)
        self.waited_s += time.perf_counter() - began
        self._ahead = self._reader.submit(self.read, step + 1)
        return batch

    def read(self, step: int) -> Batch:
        drawn = order.batch(self.order, sequences=self.sequences, step=step, positions=self.positions, since=self.since)
        mine = share(len(drawn.ids), rank=self.me.rank, world=self.me.world)
        samples, epochs = drawn.ids[mine.start : mine.stop], drawn.epochs[mine.start : mine.stop]
        rows = torch.zeros(self.rows, self.split.width(self.length), dtype=torch.int64)
        rows[: len(samples)] = torch.from_numpy(self.split.read(samples, self.length))
        return Batch(step=step, samples=samples, epochs=epochs, rows=rows)
