"""Blobs into a registry: found there, mounted from a neighbour, or sent in pieces that a cut does not undo."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urljoin

import httpx

from stoker.launch.image.registry import TRIES, Cut, Registry, pause
from stoker.spec.errors import UserError

PIECE = 8 << 20
LOST = (400, 404, 416)  # a registry's words for: that upload is no more
Progress = Callable[[int], None]
"""Told how many bytes more are there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    digest: str
    size: int
    read: Callable[[int, int], bytes]
    """(start, length) -> bytes."""


def of_file(path: Path, digest: str) -> Blob:
    def read(start: int, length: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(length)

    return Blob(digest=digest, size=path.stat().st_size, read=read)


def of_bytes(content: bytes, digest: str) -> Blob:
    return Blob(digest=digest, size=len(content), read=lambda start, length: content[start : start + length])


def of_registry(registry: Registry, repository: str, digest: str, size: int) -> Blob:
    """A blob of another registry, read a piece at a time: gigabytes pass through, none are kept."""
    return Blob(digest=digest, size=size, read=_Download(registry, repository, digest).read)


class _Download:
    """Read in order it is one request; a place that is not the next one costs another."""

    def __init__(self, registry: Registry, repository: str, digest: str) -> None:
        self._open = partial(registry.parts_from, repository, digest)
        self._at = 0
        self._parts = self._open(0)
        self._rest = b""

    def read(self, start: int, length: int) -> bytes:
        if start != self._at:
            self._parts, self._at, self._rest = self._open(start), start, b""
        found = bytearray(self._rest)
        while len(found) < length and (part := next(self._parts, None)) is not None:
            found += part
        self._rest = bytes(found[length:])
        self._at += min(length, len(found))
        return bytes(found[:length])


def send(
    registry: Registry,
    repository: str,
    blob: Blob,
    *,
    mount_from: str | None = None,
    progress: Progress = lambda _: None,
) -> bool:
    """Make the blob be there. True when its bytes had to be sent."""
    if registry.has_blob(repository, blob.digest):
        progress(blob.size)
        return False
    place = _begin(registry, repository, {"mount": blob.digest, "from": mount_from} if mount_from else None)
    if place is None:
        progress(blob.size)
        return False
    _Upload(registry, repository, blob, progress).run(place)
    return True


def _begin(registry: Registry, repository: str, mount: dict[str, str] | None = None) -> str | None:
    """Where to send it; None when it was mounted: the registry had it all the time."""
    also_from = mount["from"] if mount else None
    path = f"{repository}/blobs/uploads/"
    begun = registry.ask("POST", path, params=mount, content=b"", push=True, also_from=also_from)
    assert begun is not None
    return None if begun.status_code == 201 else _location(begun)


class _Upload:
    def __init__(self, registry: Registry, repository: str, blob: Blob, progress: Progress) -> None:
        self._registry, self._repository, self._blob, self._progress = registry, repository, blob, progress
        self._there = self._most = 0
        self._failures = 0

    def run(self, place: str) -> None:
        while self._there < self._blob.size:
            length = min(PIECE, self._blob.size - self._there)
            piece = self._blob.read(self._there, length)
            if len(piece) < length:
                raise UserError(
                    f"layer {self._blob.digest[:19]} ends after {self._there + len(piece)} bytes, and its image says "
                    f"{self._blob.size}",
                    remedy="Push that image again",
                )
            try:
                place = self._patch(place, piece)
            except Cut as e:
                place = self._look(place, e)
        params = httpx.URL(place).params.set("digest", self._blob.digest)
        self._registry.ask("PUT", str(httpx.URL(place).copy_with(params=params)), content=b"", push=True)

    def _patch(self, place: str, piece: bytes) -> str:
        last = self._there + len(piece) - 1
        headers = {"Content-Type": "application/octet-stream", "Content-Range": f"{self._there}-{last}"}
        answer = self._registry.ask("PATCH", place, headers=headers, content=piece, push=True, none_on=LOST, tries=1)
        if answer is None:
            raise Cut("it forgot what it had")
        self._arrived(last + 1)
        return _location(answer)

    def _look(self, place: str, why: Cut) -> str:
        """After a cut: how much arrived, and where to go on. Some registries keep nothing of a piece that was cut."""
        self._failures += 1
        if self._failures >= TRIES:
            raise UserError(
                f"registry {self._registry.host} broke off {TRIES} times while a layer was sent: {why}",
                remedy="Check the network and push again: what is there already is not sent again",
            ) from why
        pause(self._failures)
        answer = self._registry.ask("GET", place, push=True, none_on=LOST)
        if answer is None:
            self._arrived(0)
            anew = _begin(self._registry, self._repository)
            assert anew is not None
            return anew
        last = answer.headers.get("range", "").rpartition("-")[2]
        there = int(last) + 1 if last.isdigit() else 0
        self._arrived(there if there > 1 else 0)  # `0-0` is how a registry says that it has nothing
        return _location(answer)

    def _arrived(self, there: int) -> None:
        self._progress(there - self._there)
        self._there = there
        if there > self._most:
            self._most, self._failures = there, 0


def _location(answer: httpx.Response) -> str:
    try:
        place = httpx.URL(urljoin(str(answer.request.url), answer.headers["location"]))
    except (KeyError, ValueError, httpx.InvalidURL):
        raise UserError(
            f"registry {answer.request.url.host} does not say where a layer is to be sent", remedy="Ask who runs it"
        ) from None
    return str(place)
