"""Where text meets the terminal. For as long as a command runs, stdout and stderr are a `Screen`.

Names of files and fields, messages of servers and what workers print can hold control characters that move the cursor,
rewrite what stands above, or change the title of the window; a URL can hold a password. Everything that is printed goes
through here and is escaped, so no caller has to remember it. What Stoker itself sends to a terminal is marked with a
word that nobody outside can know.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

ESCAPE = "\x1b"
_OWN = ESCAPE + os.urandom(8).hex()
# C0 but for line end and tab, DEL, C1, marks that reorder text, line separators, and halves of characters.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)
_COLOUR = re.compile(ESCAPE + r"\[[0-9;]*m")
_USER_INFO = re.compile(r"(?<=://)[^\s/\"'<>]*@")


def printable(text: str) -> str:
    """Text from elsewhere with its control characters escaped: \\x1b, \\u202e."""
    return _UNSAFE.sub(lambda match: _escaped(match[0]), text)


def own(sequence: str) -> str:
    """A control sequence of Stoker's own, which a Screen lets through."""
    return sequence.replace(ESCAPE, _OWN)


def safe(text: str) -> str:
    """What may be sent to a terminal: control sequences of our own, and all else escaped, without passwords in URLs."""
    if "://" in text:
        text = _USER_INFO.sub("***@", text)
    if not _UNSAFE.search(text):
        return text
    return ESCAPE.join(printable(part) for part in text.split(_OWN))


def show(text: str, *, end: str = "\n", flush: bool = False, colours: bool = False) -> None:
    """Print content, such as a log: as it is to a file or a pipe; to a terminal safely, with its colours if wanted."""
    stream = cast(Any, sys.stdout)
    if not isinstance(stream, Screen):
        print(text, end=end, flush=flush)
        return
    if not stream.isatty():
        stream.direct.write(text + end)
    elif colours and _COLOUR.search(text):
        stream.write(_COLOUR.sub(lambda match: own(match[0]), text) + own(f"{ESCAPE}[0m") + end)
    else:
        stream.write(text + end)
    if flush:
        stream.flush()


@contextlib.contextmanager
def screens() -> Iterator[None]:
    """stdin, stdout and stderr that can be used, whatever the command was started with."""
    _open_closed()
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (as long as the process)
    sys.stdout, sys.stderr = cast(TextIO, Screen(sys.stdout, 1)), cast(TextIO, Screen(sys.stderr, 2))
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


class Direct:
    """A stream that takes every character: one that its encoding does not have is escaped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lenient = False

    def write(self, text: str) -> int:
        if not text.isascii():
            encoding = self._stream.encoding or "utf-8"
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        with self._forgiving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._forgiving():
            self._stream.flush()

    def outlive(self) -> None:
        """From now on, output that cannot be written, such as to a full disk, is dropped, and the work continues."""
        self._lenient = True

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # `stoker train … | head` has read enough: the run is saved and ends
            raise
        except OSError:
            if not self._lenient:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Screen(Direct):
    """A stream that text from anywhere can be printed to."""

    def __init__(self, stream: TextIO | None, descriptor: int) -> None:
        if stream is None:  # it was closed when the command began
            stream = open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (as long as the process)
        super().__init__(stream)
        self.direct = Direct(stream)
        """For what writes control sequences itself, and content that goes to a file."""

    def write(self, text: str) -> int:
        super().write(safe(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def outlive(self) -> None:
        super().outlive()
        self.direct.outlive()


def outlive_readers() -> None:
    """A run is started and followed to its end, though what is printed about it cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Direct):
            stream.outlive()


def _open_closed() -> None:
    """A file that is opened later must not become stdout: what is printed would be written into it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
