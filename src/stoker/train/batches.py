"""The samples of each step for one worker, read one step ahead."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker.data import order
from stoker.data.any_set import AnySplit
from stoker.data.stream.reader import StreamSplit
from stoker.spec.derive import share
from stoker.spec.errors import UserError

POLL_S = 1.0  # while a batch is awaited


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingBatch:
    step: int
    samples: NDArray[np.int64]
    """Ids of this worker's samples."""
    epochs: NDArray[np.int64]
    """How often each of them was used before."""
    rows: Tensor
    """One row per sample, as the split returns it, padded with zero rows to whole micro-batches."""

    @property
    def live(self) -> int:
        """Rows that are not padding."""
        return len(self.samples)


def held_out(rows: Tensor, samples: NDArray[np.int64] | None = None) -> TrainingBatch:
    """Rows for evaluation: the same each time."""
    ids = np.arange(len(rows)) if samples is None else samples
    return TrainingBatch(step=0, samples=ids, epochs=np.zeros(len(rows), np.int64), rows=rows)


class Batches:
    """Part `part` of `parts` of every batch."""

    def __init__(
        self,
        split: AnySplit,
        *,
        part: int,
        parts: int,
        seed: int,
        sequences: int,
        length: int,
        rows: int,
        positions: int | None,
        since: tuple[int, int],
    ) -> None:
        self.split, self.part, self.parts, self.since = split, part, parts, since
        self.sequences, self.length, self.rows, self.positions = sequences, length, rows, positions
        self.order = split.order(seed, length)
        self.waited_s = 0.0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ahead: Future[TrainingBatch] | None = None
        self._ended = False
        self.problem: UserError | None = None
        """Why no more batches can be read."""

    def get(self, step: int, *, give_up: Callable[[], bool] = lambda: False) -> TrainingBatch | None:
        """The batch of `step`; starts to read the next batch.

        `give_up` is called every second while the batch is awaited. None when it returned True, or when the
        data has no such batch.
        """
        began = time.perf_counter()
        batch = self._wait(self._ahead or self._reader.submit(self.read, step), give_up)
        self.waited_s += time.perf_counter() - began
        if batch is not None:
            assert batch.step == step, "steps are read in order"
            self._ahead = self._reader.submit(self.read, step + 1)
        return batch

    def close(self) -> None:
        """Wait for a read that is under way, but not for data that is still to be made."""
        if isinstance(self.split, StreamSplit):
            self.split.abandon()
        self._reader.shutdown(cancel_futures=True)

    def _wait(self, batch: Future[TrainingBatch], give_up: Callable[[], bool]) -> TrainingBatch | None:
        while not self._ended:
            if wait([batch], timeout=POLL_S).not_done:
                self._ended = give_up()
                continue
            try:
                return batch.result()
            except UserError as e:
                self._ended, self.problem = True, e
        return None

    def read(self, step: int) -> TrainingBatch:
        drawn = order.batch(self.order, sequences=self.sequences, step=step, positions=self.positions, since=self.since)
        own = share(len(drawn.ids), rank=self.part, world=self.parts)
        samples, epochs = drawn.ids[own.start : own.stop], drawn.epochs[own.start : own.stop]
        rows = torch.zeros(self.rows, self.split.width(self.length), dtype=torch.int64)
        rows[: len(samples)] = torch.from_numpy(self.split.read(samples, self.length))
        return TrainingBatch(step=step, samples=samples, epochs=epochs, rows=rows)
