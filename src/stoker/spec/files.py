"""Reads regular files only, without blocking, and up to a size limit.

A pipe waits for a writer, a device such as /dev/zero has no end, and a terminal reads what the user types. None of them
can be read twice, and files here are: hashed first, then read.
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
MAX_TEXT_BYTES = 1 << 20  # of a file that a person writes
_NON_BLOCKING = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link, a socket, a folder that should be written


class NotRegularFile(UserError, ValueError):
    """The user names a pipe, a device or a socket where a file is read."""

    def __init__(self, path: Path | str, *, kind: str) -> None:
        super().__init__(f"{path} is {kind}, not a regular file", remedy="Save its content to a file, and name that")


class NotRegularEntry(UserError, OSError, ValueError):
    """An entry of a folder is a pipe, a device, a socket, a folder or a link instead of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not a regular file", remedy="Remove it, or restore the file that was there")
        self.strerror = "not a regular file"


class FileTooLarge(UserError, ValueError):
    def __init__(self, path: Path | str, max_bytes: int) -> None:
        units = ((max_bytes >> 20, "MiB"), (max_bytes >> 10, "KiB"), (max_bytes, "bytes"))
        limit = next(f"{number} {unit}" for number, unit in units if number)
        super().__init__(f"{path} is larger than {limit}", remedy="Check that it is the file you mean")


def open_regular(path: Path | str, *, follow_links: bool = True, root: Path | None = None) -> BinaryIO:
    """Opens a file for reading, in binary. Anything but a regular file is refused; a missing file is an OSError.

    Without `follow_links` the path itself must not be a link, and no folder between `root` and the file either: for
    folders that may have been copied, downloaded or written by another user.
    """
    if not follow_links:
        return open(_open_without_links(Path(path), os.O_RDONLY, root), "rb")
    check_regular(path)  # before it is opened: opening a device may have effects
    descriptor = os.open(path, os.O_RDONLY | _NON_BLOCKING)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)  # it was replaced meanwhile
    raise _refusal(path, mode)


def open_writable(path: Path, flags: int) -> int:
    """A descriptor of a regular file that is created when it is missing. The target of a link is never written."""
    return _open_without_links(path, flags | os.O_CREAT, None)


def check_regular(path: Path | str) -> None:
    """The same check for a library that opens files by name."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise _refusal(path, mode)


def read_regular(path: Path | str, *, max_bytes: int, follow_links: bool = True, root: Path | None = None) -> bytes:
    """All of a file of up to `max_bytes`. Raises FileTooLarge for a larger one."""
    with open_regular(path, follow_links=follow_links, root=root) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FileTooLarge(path, max_bytes)
    return data


def read_text(path: Path | str, *, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """UTF-8, with line ends as \\n, as Path.read_text gives them."""
    text = read_regular(path, max_bytes=max_bytes).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _open_without_links(path: Path, flags: int, root: Path | None) -> int:
    folder = None
    try:
        if root is not None:
            folder = _open_folder(root, path)
        name = path if folder is None else path.name
        descriptor = os.open(name, flags | os.O_NOFOLLOW | _NON_BLOCKING, 0o644, dir_fd=folder)
    except OSError as e:
        parent_is_no_folder = e.errno == errno.ENOTDIR and os.path.lexists(path.parent)
        raise NotRegularEntry(path) if parent_is_no_folder or e.errno in _NOT_A_FILE else e from e
    finally:
        if folder is not None:
            os.close(folder)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NotRegularEntry(path)


def _open_folder(root: Path, path: Path) -> int:
    """A descriptor of the folder that holds `path`. A link on the way is ENOTDIR."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.relative_to(root).parts[:-1]:
        parent = folder
        try:
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
    return folder


def _refusal(path: Path | str, mode: int) -> Exception:
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = KINDS.get(stat.S_IFMT(mode), "a special file")
    return NotRegularFile(path, kind=kind)
