"""Reads a worker's output from a pipe, in lines and without secrets, and passes it to the worker's log."""

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

from stoker.supervise.output.redact import MASK, MIN_SECRET_CHARS, Redactor

OnOutput = Callable[[bytes], None]
"""Called with whole lines, redacted, without timestamps."""

PIPE_BYTES = 2**20  # capacity of the pipe and size of one read: a worker that prints in bursts is not blocked
MAX_LINE_BYTES = 64 * 1024  # a longer line is written in pieces
PARTIAL_LINE_TIMEOUT_S = 1.0  # an unfinished line is written after this time
TAIL_BYTES = 64 * 1024  # of the newest output, kept in memory
LEADING_RETURNS = re.compile(rb"(?<![^\r\n])\r+")  # a progress bar starts its lines with these


class LineSink(Protocol):
    def write(self, lines: bytes) -> None:
        """Writes whole lines. Never raises."""

    def close(self) -> None:
        """Called after the last line."""


class OutputReader:
    """Reads in its own thread, and calls `listeners` in that thread."""

    def __init__(self, log: LineSink, redact: Redactor, *listeners: OnOutput) -> None:
        self._log = log
        self._redact = redact
        self._listeners = listeners
        self._read_end, self.write_end = os.pipe()
        """`write_end` is the worker's standard output and error."""
        self._closing, self._close_signal = os.pipe()
        self._thread: threading.Thread | None = None
        self._partial = b""  # a line whose end has not been read yet
        self._partial_since = 0.0
        self._cut = False  # the last line was written before its newline was read
        self._tail = b""
        with suppress(OSError, AttributeError):  # the default size works too; only Linux lets it be set
            fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def start(self) -> None:
        """Call it once the worker has the pipe and no other worker is to be forked: threads and forks do not mix."""
        os.close(self.write_end)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Call it when the worker has ended. All its output is in its log when this returns."""
        if self._thread is None:
            return
        os.write(self._close_signal, b"\n")
        self._thread.join()
        self._thread = None
        os.close(self._read_end)
        os.close(self._closing)
        os.close(self._close_signal)

    @property
    def tail(self) -> str:
        """The newest output."""
        return self._tail.decode(errors="replace")

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        poll.register(self._closing, select.POLLIN)
        ended = False
        while not ended:
            ready = dict(poll.poll(self._poll_timeout_ms()))
            if self._closing in ready:
                ended = True
                self._drain()
            elif self._read_end in ready:
                data = os.read(self._read_end, PIPE_BYTES)
                ended = not data
                self._add(data)
            if self._partial and time.monotonic() >= self._partial_since + PARTIAL_LINE_TIMEOUT_S:
                self._emit_partial(self._partial)
        self._finish()

    def _poll_timeout_ms(self) -> float | None:
        """Until the partial line is due."""
        if not self._partial:
            return None
        return 1 + 1000 * max(0.0, self._partial_since + PARTIAL_LINE_TIMEOUT_S - time.monotonic())

    def _drain(self) -> None:
        """Reads what the pipe holds now, and no more: children of the worker may print into it forever."""
        left = int.from_bytes(fcntl.ioctl(self._read_end, termios.FIONREAD, bytes(4)), sys.byteorder)
        while left > 0 and (data := os.read(self._read_end, left)):
            left -= len(data)
            self._add(data)

    def _add(self, data: bytes) -> None:
        if self._cut and data:
            self._cut = False
            data = data.removeprefix(b"\n")  # the newline of the line that was cut
        if not self._partial:
            self._partial_since = time.monotonic()
        data = (self._partial + data).replace(b"\r\n", b"\n")
        # A carriage return at the very end may be the first half of \r\n.
        end = 1 + max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(0, len(data) - 1)))
        self._partial = data[end:]
        if end:
            self._partial_since = time.monotonic()
            self._emit(data[:end])
        while len(self._partial) >= MAX_LINE_BYTES:
            self._emit_partial(self._partial[:MAX_LINE_BYTES])

    def _emit_partial(self, piece: bytes) -> None:
        """Writes part of a line as a line, up to a possible start of a secret."""
        self._partial_since = time.monotonic()
        secret_start = self._redact.partial_secret(piece)
        if secret_start == len(piece) < MAX_LINE_BYTES:
            return
        piece = piece[: len(piece) - secret_start] or piece
        self._partial = self._partial[len(piece) :]
        self._cut = not self._partial
        self._emit(piece + b"\n")

    def _finish(self) -> None:
        secret_start = self._redact.partial_value(self._partial)
        if secret_start >= MIN_SECRET_CHARS:
            self._partial = self._partial[:-secret_start] + MASK
        if self._partial:
            self._emit(self._partial + b"\n")
        self._log.close()

    def _emit(self, lines: bytes) -> None:
        if b"\r" in lines:
            lines = LEADING_RETURNS.sub(b"", lines.replace(b"\r\n", b"\n")).replace(b"\r", b"\n")
        if not lines:
            return
        lines = self._redact(lines)
        self._log.write(lines)
        self._tail = (self._tail + lines)[-TAIL_BYTES:]
        for listener in self._listeners:
            listener(lines)


class Echo:
    """Prints a worker's lines on this process's standard output, each with a prefix. Lines of workers never mix."""

    _lock = threading.Lock()

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def __call__(self, lines: bytes) -> None:
        text = self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"
        with self._lock, suppress(OSError, ValueError):  # a closed output: the log has the lines
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
