"""Files that a user names: only regular files are opened, and as much of one is read as was agreed.

A pipe waits for a writer, a device such as /dev/zero has no end, and a terminal reads what somebody types. None of them
can be read twice, and everything here is: hashed first, then read.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from stoker.spec.errors import UserError

KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
MOST_TEXT = 1 << 20  # bytes of a file that a person writes


def open_regular(path: Path | str) -> BinaryIO:
    """Open for reading, in binary. Anything but a regular file is refused at once; a missing file is an OSError."""
    check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor).st_mode, path)  # what the name stands for may have changed since
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: Path | str) -> None:
    """The same check for a library that opens files by name."""
    _check(os.stat(path).st_mode, path)


def read_regular(path: Path | str, *, most: int) -> bytes:
    """All of a file that may have `most` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        shown = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
        raise UserError(f"{path} is larger than {shown}", remedy="Check that it is the file you mean")
    return content


def read_text(path: Path | str, *, most: int = MOST_TEXT) -> str:
    """UTF-8, with line ends as \\n, as Path.read_text gives them."""
    text = read_regular(path, most=most).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check(mode: int, path: Path | str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise UserError(f"{path} is {kind}, not a regular file", remedy="Save its content to a file, and name that")
