"""The progress of a transfer."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

RATE_WINDOW_S = 10.0
REPORT_EVERY_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferProgress:
    done: int
    """Bytes at the other end, verified or not yet."""
    total: int
    present: int
    """Bytes that already existed, and are not sent again."""
    files: int
    of_files: int
    rate: float
    """Bytes per second, recently."""
    seconds_left: float | None
    waiting: str = ""
    """Why nothing moves: another transfer sends the same files, or the connection is lost."""


def ignore(progress: TransferProgress) -> None:
    """Shows nothing."""


class TransferMeter:
    def __init__(self, report: Callable[[TransferProgress], None] = ignore) -> None:
        self._report = report
        self._next = 0.0
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._present: int | None = None
        self._total = self._of_files = self._base = self._files = 0
        self.moved = 0
        """Bytes sent in all tries together."""

    def begin(self, *, total: int, files: int, present: int, files_present: int) -> None:
        """Of a try: the total, and what the other end already has."""
        self._present = present if self._present is None else self._present
        self._total, self._of_files, self._files = total, files, files_present
        self._base = present - self.moved
        self._update(always=True)

    def move(self, bytes: int) -> None:
        self.moved += bytes
        self._update()

    def skip(self, bytes: int) -> None:
        """Counts bytes that already existed."""
        self._base += bytes
        self._update()

    def file(self) -> None:
        self._files += 1
        self._update()

    def wait(self, why: str) -> None:
        self._update(why, always=True)

    def end(self) -> None:
        self._update(always=True)

    @property
    def progress(self) -> TransferProgress:
        return self._progress("")

    def _progress(self, waiting: str) -> TransferProgress:
        (then, before), now = self._recent[0], time.monotonic()
        rate = (self.moved - before) / (now - then) if now > then else 0.0
        done = self._base + self.moved
        return TransferProgress(
            done=done,
            total=self._total,
            present=self._present or 0,
            files=self._files,
            of_files=self._of_files,
            rate=rate,
            seconds_left=(self._total - done) / rate if rate else None,
            waiting=waiting,
        )

    def _update(self, waiting: str = "", *, always: bool = False) -> None:
        now = time.monotonic()
        if now < self._next and not always:
            return
        self._next = now + REPORT_EVERY_S
        self._recent.append((now, self.moved))
        while now - self._recent[0][0] > RATE_WINDOW_S and len(self._recent) > 2:
            self._recent.popleft()
        self._report(self._progress(waiting))
