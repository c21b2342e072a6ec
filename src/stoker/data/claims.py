"""A folder that a set is made in: whose it is, and that only one process makes it."""

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
    """One prepare to a folder; a second waits, and then finds the work done."""
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
    """Half a token set is ours to finish, and so is one being made; anything else in the folder is the user's."""
    out.mkdir(parents=True, exist_ok=True)
    names = os.listdir(out)
    # Looked for after the list was taken: the lock is the first file that a prepare makes.
    if names and not any((out / ours).exists() for ours in (LOCK_FILE, INDEX_FILE)):
        raise UserError(
            f"{out} is not empty and holds no token set", remedy="Choose a folder that is empty or not there yet"
        )
    (out / LOCK_FILE).touch()
