"""From elsewhere to a file here: tried again with back-off, gone on with where it broke off, checked at the end."""

import base64
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from stoker.spec.errors import UserError

Answer = TypeVar("Answer")
FEW, MANY = 4, 10  # tries in a row: while somebody waits for the first answer, and in the midst of a long work
FIRST_WAIT, LONGEST_WAIT = 0.25, 30.0  # seconds
LONGEST_ASKED = 300.0  # the most that a Retry-After is heeded
CHUNK = 1 << 20


class RemoteError(UserError):
    """Somebody elsewhere said no, or nothing."""


class Broken(Exception):
    """Another try may go better."""

    def __init__(self, why: object, *, after: float | None = None) -> None:
        super().__init__(str(why))
        self.after = after
        """Seconds that the server asks to wait."""


def patiently(ask: Callable[[], Answer], *, name: str, tries: int = FEW) -> Answer:
    for number in range(1, tries):
        try:
            return ask()
        except Broken as e:
            time.sleep(_wait(number, e))
    try:
        return ask()
    except Broken as e:
        raise given_up(name, e) from e


def copy(read: Callable[[int], Iterator[bytes]], path: Path, *, size: int, name: str) -> Iterator[int]:
    """Bytes into a file, which may have the first of them already; tells how many come. Each renews the patience."""
    failures = 0
    with open(path, "ab") as file:
        if file.tell() > size:
            file.truncate(0)
        while file.tell() < size:
            try:
                for chunk in read(file.tell()):
                    if file.tell() + len(chunk) > size:
                        raise changed(name)
                    file.write(chunk)
                    failures = 0
                    yield len(chunk)
                if file.tell() < size:
                    raise Broken(f"it ended after {file.tell()} of {size} bytes")
            except Broken as e:
                failures += 1
                if failures == MANY:
                    raise given_up(name, e) from e
                file.flush()
                time.sleep(_wait(failures, e))
        file.flush()
        os.fsync(file.fileno())


def is_hash(tag: str) -> bool:
    """Whether a tag is made of the content, and of nothing else."""
    return tag.partition(":")[0] in ("sha256", "md5", "git")


def is_as_told(path: Path, tag: str) -> bool:
    """Where a tag is made of the content, whether it is that of the file."""
    kind, _, value = tag.partition(":")
    with open(path, "rb") as file:
        if kind == "sha256":
            return hashlib.file_digest(file, "sha256").hexdigest() == value
        if kind == "md5":
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()
            return base64.b64encode(digest).decode() == value
        if kind == "git":
            blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
            while chunk := file.read(CHUNK):
                blob.update(chunk)
            return blob.hexdigest() == value
    return True


def given_up(name: str, why: object) -> RemoteError:
    return RemoteError(
        f"{name} cannot be fetched ({why})",
        remedy="Check the address and the network, then run the same command again: it goes on where it stopped",
    )


def changed(name: str) -> RemoteError:
    return RemoteError(f"{name} has changed since it was listed", remedy="Begin with what it is now: start with --new")


def _wait(failures: int, broken: Broken) -> float:
    if broken.after is not None:
        return min(broken.after, LONGEST_ASKED)
    longest: float = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (failures - 1))
    return longest * random.uniform(0.5, 1.0)  # many who failed together do not all come back together
