"""Safe output to a terminal. While a command runs, stdout and stderr are a `Screen`.

Names of files and fields, messages of servers and the output of workers can contain control characters that move the
cursor, overwrite earlier lines, or change the title of the window; a URL can contain a password. Everything that is
printed goes through here and is escaped, so callers need not do it. Stoker's own control sequences are marked with a
random token that other text cannot contain.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

ESCAPE = "\x1b"
_OWN = ESCAPE + os.urandom(8).hex()
# C0 except newline and tab, DEL, C1, bidirectional controls, line separators, and surrogates.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)
_COLOUR = re.compile(ESCAPE + r"\[[0-9;]*m")
_USER_INFO = re.compile(r"(?<=://)[^\s/\"'<>]*@")


def printable(text: str) -> str:
    """Text with its control characters escaped: \\x1b, \\u202e."""
    return _UNSAFE.sub(lambda match: _escaped(match[0]), text)


def own(sequence: str) -> str:
    """A control sequence of Stoker, which a Screen does not escape."""
    return sequence.replace(ESCAPE, _OWN)


def safe(text: str) -> str:
    """Text for a terminal: everything escaped but Stoker's own control sequences, and no passwords in URLs."""
    if "://" in text:
        text = _USER_INFO.sub("***@", text)
    if not _UNSAFE.search(text):
        return text
    return ESCAPE.join(printable(part) for part in text.split(_OWN))


def show(text: str, *, end: str = "\n", flush: bool = False, colours: bool = False) -> None:
    """Print content, such as a log: unchanged to a file or a pipe; escaped to a terminal (`colours` stay)."""
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
    """Usable stdin, stdout and stderr, even if some were closed when the command started."""
    _open_closed()
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (as long as the process)
    sys.stdout, sys.stderr = cast(TextIO, Screen(sys.stdout, 1)), cast(TextIO, Screen(sys.stderr, 2))
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


class Direct:
    """A stream that accepts every character: those that its encoding does not have are escaped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lenient = False

    def write(self, text: str) -> int:
        if not text.isascii():
            encoding = self._stream.encoding or "utf-8"
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        with self._checked():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._checked():
            self._stream.flush()

    def ignore_errors(self) -> None:
        """From now on, output that cannot be written, for example to a full disk, is dropped."""
        self._lenient = True

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # `stoker train … | head` has read enough: the run saves and stops
            raise
        except OSError:
            if not self._lenient:
                raise
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self._stream.fileno())
            os.close(devnull)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Screen(Direct):
    """A stream that escapes what is printed to it."""

    def __init__(self, stream: TextIO | None, descriptor: int) -> None:
        if stream is None:  # it was closed when the command started
            stream = open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (as long as the process)
        super().__init__(stream)
        self.direct = Direct(stream)
        """For rich, which writes control sequences itself, and for content that goes to a file."""

    def write(self, text: str) -> int:
        super().write(safe(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def ignore_errors(self) -> None:
        super().ignore_errors()
        self.direct.ignore_errors()


def ignore_output_errors() -> None:
    """Follow a run to its end even if the output cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Direct):
            stream.ignore_errors()


def _open_closed() -> None:
    """Open closed descriptors, so that a file that is opened later does not become stdout and receive the output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
