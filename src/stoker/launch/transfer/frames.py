"""What two ends of a pipe tell each other: messages (JSON) and pieces of files, each with its length before it."""

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from stoker.spec.errors import UserError

Message = dict[str, Any]

HEAD = struct.Struct(">cI")
JSON, BYTES = b"J", b"B"
PIECE = 256 << 10  # bytes of a file in one frame
LONGEST = 64 << 20  # of a frame: the names of a million files
AHEAD = 1 << 20  # bytes that are read before anybody asks for them: lost when the pipe breaks
BEAT = 5.0  # seconds between two signs of life
SILENCE = 45.0  # seconds after which the other end is taken to be gone: a laptop slept, a node died


class Cut(Exception):
    """The other end is gone: another try may go better."""


class Pipe(Protocol):
    """Raises OSError or Cut when it breaks."""

    def read(self, most: int) -> bytes:
        """What is there, at least a byte; nothing when the other end has closed it."""

    def write(self, data: bytes) -> None:
        """All of it."""

    def close(self) -> None:
        """Also from another thread; whoever reads gets nothing."""


class Frames:
    """A thread of its own reads: signs of life are seen also while this end is at something that takes long."""

    def __init__(self, pipe: Pipe, *, silence: float = SILENCE) -> None:
        self._pipe = pipe
        self._silence = silence
        self._writing = threading.Lock()
        self._change = threading.Condition()  # of what follows
        self._held = bytearray()
        self._wanted = 0
        self._heard = time.monotonic()
        self._wrong: Exception | None = None
        self._over = False
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, **message: object) -> None:
        self._write(JSON, json.dumps(message).encode())

    def send(self, data: bytes) -> None:
        self._write(BYTES, data)

    def hear(self) -> Message | bytes:
        """The next that is more than a sign of life. Raises what the other end complains of."""
        while True:
            kind, length = HEAD.unpack(self._read(HEAD.size))
            if kind not in (JSON, BYTES) or length > LONGEST:
                raise Cut("what came is no frame")
            data = self._read(length)
            if kind == BYTES:
                return data
            message: Message = json.loads(data)
            if "error" in message:
                raise UserError(message["error"], remedy=message["remedy"])
            if "alive" not in message:
                return message

    def message(self) -> Message:
        heard = self.hear()
        if isinstance(heard, bytes):
            raise Cut("bytes came where a message was due")
        return heard

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Tells that this end lives; when nothing is heard of the other for long, the pipe is closed."""
        done = threading.Event()
        self._heard = time.monotonic()
        for work in (self._beat, self._watch):
            threading.Thread(target=work, args=(done,), daemon=True).start()
        try:
            yield
        finally:
            done.set()
            with self._change:
                self._over = True
                self._change.notify_all()

    def _beat(self, done: threading.Event) -> None:
        while not done.wait(BEAT):
            try:
                self.say(alive=True)
            except Cut:
                return

    def _watch(self, done: threading.Event) -> None:
        """A thread of its own: who writes to somebody that is gone may wait for ever."""
        while not done.wait(1.0):
            with self._change:
                if not self._has_room():  # it is the other end that waits
                    self._heard = time.monotonic()
                silence = time.monotonic() - self._heard
            if silence > self._silence:
                self._pipe.close()
                return

    def _write(self, kind: bytes, data: bytes) -> None:
        with self._writing, broken_is_cut():
            self._pipe.write(HEAD.pack(kind, len(data)) + data)

    def _read(self, length: int) -> bytes:
        with self._change:
            self._wanted = length
            self._change.notify_all()
            self._change.wait_for(lambda: len(self._held) >= length or self._wrong)
            if self._wrong and len(self._held) < length:
                raise self._wrong
            found = bytes(self._held[:length])
            del self._held[:length]
            self._wanted = 0
            self._change.notify_all()
            return found

    def _listen(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._over or self._has_room())
                if self._over:
                    return
            try:
                with broken_is_cut():
                    data = self._pipe.read(1 << 20)
                if not data:
                    raise Cut("the connection was closed")
            except Exception as e:  # it is raised where somebody waits for what does not come
                with self._change:
                    self._wrong = e
                    self._change.notify_all()
                return
            with self._change:
                self._heard = time.monotonic()
                self._held += data
                self._change.notify_all()

    def _has_room(self) -> bool:
        return len(self._held) < max(AHEAD, self._wanted)


@contextmanager
def broken_is_cut() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as e:  # ValueError: it was closed by the one who watches over it
        raise Cut(str(e) or type(e).__name__) from e


def told(frames: Frames, work: Callable[[], None]) -> bool:
    """Does it; what the user can mend is told to the other end. False when it came to nothing."""
    try:
        work()
    except UserError as e:
        frames.say(error=e.problem, remedy=e.remedy)
        return False
    except OSError as e:
        frames.say(error=f"{e.filename or 'the volume'}: {e.strerror or e}", remedy="Mend it there, then try again")
        return False
    return True
