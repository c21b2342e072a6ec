"""How far a transfer has come."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 10.0  # seconds that the rate is reckoned from
OFTEN = 0.1  # seconds between two tellings


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    done: int
    """Bytes that are there, checked or on the way to it."""
    total: int
    there: int
    """Bytes of them that were there before, and are not sent again."""
    files: int
    of_files: int
    rate: float
    """Bytes a second, of late."""
    seconds_left: float | None
    waiting: str = ""
    """Why nothing moves: somebody else sends the same, or the connection is gone."""


def ignore(progress: Progress) -> None:
    """Nobody looks."""


class Meter:
    def __init__(self, tell: Callable[[Progress], None] = ignore) -> None:
        self._tell = tell
        self._next = 0.0
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._there: int | None = None
        self._total = self._of_files = self._base = self._files = 0
        self.moved = 0
        """Bytes that came over the wire, in all tries together."""

    def begin(self, *, total: int, files: int, there: int, files_there: int) -> None:
        """Of a try: what there is in all, and what the other end has of it."""
        self._there = there if self._there is None else self._there
        self._total, self._of_files, self._files = total, files, files_there
        self._base = there - self.moved
        self._say(always=True)

    def move(self, bytes: int) -> None:
        self.moved += bytes
        self._say()

    def skip(self, bytes: int) -> None:
        """They were there after all."""
        self._base += bytes
        self._say()

    def file(self) -> None:
        self._files += 1
        self._say()

    def wait(self, why: str) -> None:
        self._say(why, always=True)

    def end(self) -> None:
        self._say(always=True)

    @property
    def progress(self) -> Progress:
        return self._progress("")

    def _progress(self, waiting: str) -> Progress:
        (then, before), now = self._recent[0], time.monotonic()
        rate = (self.moved - before) / (now - then) if now > then else 0.0
        done = self._base + self.moved
        return Progress(
            done=done,
            total=self._total,
            there=self._there or 0,
            files=self._files,
            of_files=self._of_files,
            rate=rate,
            seconds_left=(self._total - done) / rate if rate else None,
            waiting=waiting,
        )

    def _say(self, waiting: str = "", *, always: bool = False) -> None:
        now = time.monotonic()
        if now < self._next and not always:
            return
        self._next = now + OFTEN
        self._recent.append((now, self.moved))
        while now - self._recent[0][0] > WINDOW and len(self._recent) > 2:
            self._recent.popleft()
        self._tell(self._progress(waiting))
