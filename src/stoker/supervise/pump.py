"""A worker's output on its way from a pipe to its log: in lines, and without secrets."""

import fcntl
import os
import re
import select
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from stoker.supervise.redact import BLOT, SHORTEST, Redactor

BLOCK = 2**20  # bytes in the pipe, and in one look at it: a worker that prints in bursts does not wait
PIECE = 64 * 1024  # bytes of a line without an end that are written at once
PATIENCE = 1.0  # seconds that an unfinished line is held back
TAIL = 64 * 1024  # bytes at the end that are kept at hand
REWINDS = re.compile(rb"(?<![^\r\n])\r+")  # a progress bar begins its lines with these


class Log(Protocol):
    def write(self, lines: bytes) -> None:
        """Whole lines. Never raises."""

    def close(self) -> None:
        """No more will come."""


class Pump:
    """Reads in a thread of its own. `ears` are called there, with whole lines as they stand in the log, unstamped."""

    def __init__(self, log: Log, redact: Redactor, *ears: Callable[[bytes], None]) -> None:
        self._log = log
        self._redact = redact
        self._ears = ears
        self._source, self.sink = os.pipe()
        """`sink` is the worker's standard output and error."""
        self._wake = os.eventfd(0)
        self._thread: threading.Thread | None = None
        self._rest = b""  # of a line whose end has not come
        self._since = 0.0  # when the rest began to wait
        self._cut = False  # the last line was written without its end
        self._tail = b""
        with suppress(OSError):  # the kernel's own size does too
            fcntl.fcntl(self.sink, fcntl.F_SETPIPE_SZ, BLOCK)

    def start(self) -> None:
        """Once the worker has the sink, and no other worker is to be forked: forks and threads go ill together."""
        os.close(self.sink)
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Called when the worker has ended: all that it printed is in its log when this returns."""
        if self._thread is None:
            return
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._thread = None
        os.close(self._source)
        os.close(self._wake)

    @property
    def tail(self) -> str:
        """The end of what it has printed."""
        return self._tail.decode(errors="replace")

    def _pump(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        ended = False
        while not ended:
            ready = dict(poll.poll(self._milliseconds()))
            if self._wake in ready:
                ended = True
                self._drain()
            elif self._source in ready:
                data = os.read(self._source, BLOCK)
                ended = not data
                self._take(data)
            if self._rest and time.monotonic() >= self._since + PATIENCE:
                self._put_piece(self._rest)
        self._finish()

    def _milliseconds(self) -> float | None:
        """Until the rest has waited long enough."""
        return 1 + 1000 * max(0.0, self._since + PATIENCE - time.monotonic()) if self._rest else None

    def _drain(self) -> None:
        """What the pipe holds now is all that the worker left; its children may go on printing into it for ever."""
        left = int.from_bytes(fcntl.ioctl(self._source, termios.FIONREAD, bytes(4)), sys.byteorder)
        while left > 0 and (data := os.read(self._source, left)):
            left -= len(data)
            self._take(data)

    def _take(self, data: bytes) -> None:
        if self._cut and data:
            self._cut = False
            data = data.removeprefix(b"\n")  # the end that the line lacked
        if not self._rest:
            self._since = time.monotonic()
        data = (self._rest + data).replace(b"\r\n", b"\n")
        # A carriage return at the very end may be the half of \r\n.
        end = 1 + max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(0, len(data) - 1)))
        self._rest = data[end:]
        if end:
            self._since = time.monotonic()
            self._put(data[:end])
        while len(self._rest) >= PIECE:
            self._put_piece(self._rest[:PIECE])

    def _put_piece(self, piece: bytes) -> None:
        """Part of a line as a line, up to what may be the beginning of a secret."""
        self._since = time.monotonic()
        begun = self._redact.begun(piece)
        if begun == len(piece) < PIECE:
            return
        piece = piece[: len(piece) - begun] or piece
        self._rest = self._rest[len(piece) :]
        self._cut = not self._rest
        self._put(piece + b"\n")

    def _finish(self) -> None:
        begun = self._redact.begun_value(self._rest)
        if begun >= SHORTEST:
            self._rest = self._rest[:-begun] + BLOT
        if self._rest:
            self._put(self._rest + b"\n")
        self._log.close()

    def _put(self, lines: bytes) -> None:
        if b"\r" in lines:
            lines = REWINDS.sub(b"", lines.replace(b"\r\n", b"\n")).replace(b"\r", b"\n")
        if not lines:
            return
        lines = self._redact(lines)
        self._log.write(lines)
        self._tail = (self._tail + lines)[-TAIL:]
        for ear in self._ears:
            ear(lines)
