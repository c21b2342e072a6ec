"""The folder that a set is prepared in: checked, and locked against other processes."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.data.encode import disk_error
from stoker.data.shards import INDEX_FILE
from stoker.spec.errors import UserError

LOCK_FILE = ".lock"


@contextmanager
def lock(folder: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Allows one prepare per folder; a second waits, and then finds the work done."""
    with open(folder / LOCK_FILE, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise disk_error(folder, e) from e


def claim(out: Path) -> None:
    """Accepts a folder that is empty or has an unfinished token set; other files belong to the user."""
    out.mkdir(parents=True, exist_ok=True)
    names = os.listdir(out)
    # Checked after listing: the lock is the first file that a prepare creates.
    if names and not any((out / name).exists() for name in (LOCK_FILE, INDEX_FILE)):
        raise UserError(f"{out} is not empty and has no token set", remedy="Choose an empty or a new folder")
    (out / LOCK_FILE).touch()
