"""Downloads to a file: retried with backoff, resumed where the connection broke, checked at the end."""

import base64
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from stoker.spec.errors import UserError

Result = TypeVar("Result")
FEW_TRIES, MANY_TRIES = 4, 10  # in a row: while the user waits for the first response, and during a long transfer
FIRST_WAIT_S, MAX_WAIT_S = 0.25, 30.0
MAX_RETRY_AFTER_S = 300.0  # the hub counts requests over five minutes
CHUNK_BYTES = 1 << 20


class RemoteError(UserError):
    """A remote server refused a request, or does not answer."""


class Interrupted(Exception):
    """A temporary failure: worth another try."""

    def __init__(self, reason: object, *, after: float | None = None) -> None:
        super().__init__(str(reason))
        self.after = after
        """Seconds to wait, if the server names a time."""


def with_retries(request: Callable[[], Result], *, name: str, tries: int = FEW_TRIES) -> Result:
    for number in range(1, tries):
        try:
            return request()
        except Interrupted as e:
            time.sleep(_wait(number, e))
    try:
        return request()
    except Interrupted as e:
        raise gave_up(name, e) from e


def copy(read: Callable[[int], Iterator[bytes]], path: Path, *, size: int, name: str) -> Iterator[int]:
    """Appends to a file until it has `size` bytes; yields the length of each chunk. Progress resets the retry count."""
    failures = 0
    with open(path, "ab") as file:
        if file.tell() > size:
            file.seek(0)
            file.truncate()
        while file.tell() < size:
            try:
                for chunk in read(file.tell()):
                    if file.tell() + len(chunk) > size:
                        raise changed(name)
                    file.write(chunk)
                    failures = 0
                    yield len(chunk)
                if file.tell() < size:
                    raise Interrupted(f"it ended after {file.tell()} of {size} bytes")
            except Interrupted as e:
                failures += 1
                if failures == MANY_TRIES:
                    raise gave_up(name, e) from e
                file.flush()
                time.sleep(_wait(failures, e))
        file.flush()
        os.fsync(file.fileno())


def is_hash(tag: str) -> bool:
    """Whether a tag is a hash of the content."""
    return tag.partition(":")[0] in ("sha256", "md5", "git")


def matches_tag(path: Path, tag: str) -> bool:
    """Whether a file has the content that a tag names; True where the tag is not a hash."""
    kind, _, value = tag.partition(":")
    with open(path, "rb") as file:
        if kind == "sha256":
            return hashlib.file_digest(file, "sha256").hexdigest() == value
        if kind == "md5":
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()
            return base64.b64encode(digest).decode() == value
        if kind == "git":
            blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
            while chunk := file.read(CHUNK_BYTES):
                blob.update(chunk)
            return blob.hexdigest() == value
    return True


def gave_up(name: str, reason: object) -> RemoteError:
    return RemoteError(
        f"{name} cannot be fetched ({reason})",
        remedy="Check the address and the network, then run the same command again: it resumes where it stopped",
    )


def changed(name: str) -> RemoteError:
    return RemoteError(f"{name} has changed since it was listed", remedy="Start a new run with its new content: --new")


def _wait(failures: int, error: Interrupted) -> float:
    if error.after is not None:
        return min(error.after, MAX_RETRY_AFTER_S)
    longest: float = min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** (failures - 1))
    return longest * random.uniform(0.5, 1.0)  # clients that failed together do not all retry together
