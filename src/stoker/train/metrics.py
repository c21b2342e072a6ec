"""What rank 0 logs: TensorBoard's files, and speeds."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.rundir import Record
from stoker.spec.errors import first_line


class Board:
    """TensorBoard's files. When they cannot be written, `failed` gets the reason, and training continues.

    TensorBoard takes half a second to import: only the worker that writes its files does.
    """

    def __init__(self, folder: Path, *, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._writer: Any = None
        self._writer = self._try(lambda: _tensorboard(folder))

    def add(self, record: Record) -> None:
        if self._writer:
            self._try(lambda: self._writer.add(record))

    def close(self) -> None:
        if self._writer:
            self._try(self._writer.close)

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as e:  # the writer has its own error classes, and re-raises errors of its thread
            self._writer = None
            self._failed(f"TensorBoard's files are not written any more: {first_line(e)}")
            return None


def _tensorboard(folder: Path) -> Any:
    from stoker.train.tensorboard import TensorBoard  # noqa: PLC0415 (half a second, in one worker only)

    return TensorBoard(folder)


class StepMeter:
    """Speeds over the steps since the last logged step, without evaluations."""

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
