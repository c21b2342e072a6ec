"""What rank 0 writes down of a step: metrics.jsonl, TensorBoard, and the speeds between two lines."""

import time
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from stoker.rundir import Record

TENSORBOARD = "stoker.train.tensorboard"


class Board(Protocol):
    def add(self, record: Record) -> None: ...
    def close(self) -> None: ...


def open_board(folder: Path) -> Board:
    """TensorBoard takes half a second to load: only the worker that writes it does."""
    return cast(Board, import_module(TENSORBOARD).TensorBoard(folder))


class Meter:
    """Speeds over the steps since the last line. Evaluation is not training and is left out."""

    def __init__(self, *, flops_per_token: float, peak_flops: float | None) -> None:
        self.flops_per_token = flops_per_token
        self.peak_flops = peak_flops
        self.restart(waited_s=0.0)

    def restart(self, *, waited_s: float) -> None:
        self._began = time.perf_counter()
        self._waited_s = waited_s
        self._tokens = self._sequences = 0

    def step(self, *, tokens: int, sequences: int) -> None:
        self._tokens += tokens
        self._sequences += sequences

    def read(self, *, waited_s: float) -> Record:
        seconds = max(1e-9, time.perf_counter() - self._began)
        speed = self._tokens / seconds
        return {
            "tokens_per_second": speed,
            "samples_per_second": self._sequences / seconds,
            "mfu": speed * self.flops_per_token / self.peak_flops if self.peak_flops else None,
            "data_wait": (waited_s - self._waited_s) / seconds,
        }
