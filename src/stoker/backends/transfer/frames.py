"""The protocol of the two ends: messages (JSON) and pieces of files over a pipe, each with its length before it."""

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from stoker.spec.errors import NotFound, UserError

Message = dict[str, Any]

HEAD = struct.Struct(">cI")
JSON, BYTES = b"J", b"B"
PIECE = 256 << 10  # bytes of a file in one frame
MAX_FRAME = 64 << 20  # bytes: the names of a million files
READ_AHEAD = 1 << 20  # bytes: lost when the pipe breaks
HEARTBEAT_S = 5.0
SILENCE_TIMEOUT_S = 45.0  # then the other end counts as lost: a laptop slept, a node died


class PeerLost(Exception):
    """The connection to the other end is lost. Another try may succeed."""


class Pipe(Protocol):
    """Raises OSError or PeerLost when it breaks."""

    def read(self, most: int) -> bytes:
        """At least one byte; empty when the other end has closed it."""

    def write(self, data: bytes) -> None:
        """All of it."""

    def close(self) -> None:
        """Thread-safe: a pending read returns nothing."""


class Frames:
    """Reads in its own thread, so that heartbeats are seen while this end is busy."""

    def __init__(self, pipe: Pipe, *, silence_timeout_s: float = SILENCE_TIMEOUT_S) -> None:
        self._pipe = pipe
        self._silence_timeout_s = silence_timeout_s
        self._writing = threading.Lock()
        self._changed = threading.Condition()  # guards the fields below
        self._buffer = bytearray()
        self._wanted = 0
        self._last_read = time.monotonic()
        self._error: Exception | None = None
        self._closed = False
        threading.Thread(target=self._listen, daemon=True).start()

    def send_message(self, **message: object) -> None:
        self._write(JSON, json.dumps(message).encode())

    def send_bytes(self, data: bytes) -> None:
        self._write(BYTES, data)

    def receive(self) -> Message | bytes:
        """The next frame that is not a heartbeat. Raises the error that the other end reports."""
        while True:
            kind, length = HEAD.unpack(self._read(HEAD.size))
            if kind not in (JSON, BYTES) or length > MAX_FRAME:
                raise PeerLost("the data received is not a frame")
            data = self._read(length)
            if kind == BYTES:
                return data
            message = _parse(data)
            if "error" in message:
                error = NotFound if message.get("not_found") else UserError
                raise error(str(message["error"]), remedy=str(message.get("remedy", "")))
            if "alive" not in message:
                return message

    def message(self) -> Message:
        received = self.receive()
        if isinstance(received, bytes):
            raise PeerLost("received bytes where a message was expected")
        return received

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Sends heartbeats, and closes the pipe when the other end is silent for too long."""
        done = threading.Event()
        self._last_read = time.monotonic()
        for work in (self._send_heartbeats, self._watch):
            threading.Thread(target=work, args=(done,), daemon=True).start()
        try:
            yield
        finally:
            done.set()
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _send_heartbeats(self, done: threading.Event) -> None:
        while not done.wait(HEARTBEAT_S):
            try:
                self.send_message(alive=True)
            except PeerLost:
                return

    def _watch(self, done: threading.Event) -> None:
        """In its own thread: a write to a lost peer may block forever."""
        while not done.wait(1.0):
            with self._changed:
                if not self._has_room():  # this end is slow, not the peer
                    self._last_read = time.monotonic()
                silence_s = time.monotonic() - self._last_read
            if silence_s > self._silence_timeout_s:
                self._pipe.close()
                return

    def _write(self, kind: bytes, data: bytes) -> None:
        with self._writing, errors_as_peer_lost():
            self._pipe.write(HEAD.pack(kind, len(data)) + data)

    def _read(self, length: int) -> bytes:
        with self._changed:
            self._wanted = length
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._buffer) >= length or self._error)
            if self._error and len(self._buffer) < length:
                raise self._error
            data = bytes(self._buffer[:length])
            del self._buffer[:length]
            self._wanted = 0
            self._changed.notify_all()
            return data

    def _listen(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._has_room())
                if self._closed:
                    return
            try:
                with errors_as_peer_lost():
                    data = self._pipe.read(1 << 20)
                if not data:
                    raise PeerLost("the connection was closed")
            except Exception as e:  # raised again in `_read`
                with self._changed:
                    self._error = e
                    self._changed.notify_all()
                return
            with self._changed:
                self._last_read = time.monotonic()
                self._buffer += data
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return len(self._buffer) < max(READ_AHEAD, self._wanted)


def _parse(data: bytes) -> Message:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise PeerLost("the data received is not a message") from e
    if not isinstance(message, dict):
        raise PeerLost("the data received is not a message")
    return message


@contextmanager
def errors_as_peer_lost() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as e:  # ValueError: the watching thread has closed it
        raise PeerLost(str(e) or type(e).__name__) from e


def report_errors(frames: Frames, work: Callable[[], None]) -> bool:
    """Runs `work` and reports errors that the user can fix to the other end. False if there was an error."""
    try:
        work()
    except UserError as e:
        frames.send_message(error=e.problem, remedy=e.remedy, not_found=isinstance(e, NotFound))
        return False
    except OSError as e:
        problem = f"{e.filename or 'the volume'}: {e.strerror or e}"
        frames.send_message(error=problem, remedy="Fix it there, then try again")
        return False
    return True
