"""Blobs into a registry: already there, mounted from another repository, or sent in pieces and resumed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urljoin

import httpx2

from stoker.image.registry import TRIES, ConnectionBroken, Registry, pause
from stoker.spec.errors import UserError

PIECE = 8 << 20
UPLOAD_LOST = (400, 404, 416)  # the registry has forgotten the upload
OnSent = Callable[[int], None]
"""Called with the number of bytes sent since the last call."""


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
    """A blob of another registry, read in pieces: it is never kept whole."""
    return Blob(digest=digest, size=size, read=_Download(registry, repository, digest).read)


class _Download:
    """Sequential reads take one request; each jump takes another."""

    def __init__(self, registry: Registry, repository: str, digest: str) -> None:
        self._open = partial(registry.parts_from, repository, digest)
        self._at = 0
        self._parts = self._open(0)
        self._rest = b""

    def read(self, start: int, length: int) -> bytes:
        if start != self._at:
            self._parts, self._at, self._rest = self._open(start), start, b""
        data = bytearray(self._rest)
        while len(data) < length and (part := next(self._parts, None)) is not None:
            data += part
        self._rest = bytes(data[length:])
        self._at += min(length, len(data))
        return bytes(data[:length])


def send(
    registry: Registry,
    repository: str,
    blob: Blob,
    *,
    mount_from: str | None = None,
    progress: OnSent = lambda _: None,
) -> bool:
    """Ensures that the registry has the blob. True if its bytes had to be sent."""
    if registry.has_blob(repository, blob.digest):
        progress(blob.size)
        return False
    location = _begin(registry, repository, {"mount": blob.digest, "from": mount_from} if mount_from else None)
    if location is None:
        progress(blob.size)
        return False
    _Upload(registry, repository, blob, progress).run(location)
    return True


def _begin(registry: Registry, repository: str, mount: dict[str, str] | None = None) -> str | None:
    """The URL to send it to; None if it was mounted from another repository."""
    also_from = mount["from"] if mount else None
    path = f"{repository}/blobs/uploads/"
    started = registry.ask("POST", path, params=mount, content=b"", push=True, also_from=also_from)
    assert started is not None
    return None if started.status_code == 201 else _location(started)


class _Upload:
    def __init__(self, registry: Registry, repository: str, blob: Blob, progress: OnSent) -> None:
        self._registry, self._repository, self._blob, self._progress = registry, repository, blob, progress
        self._received = self._most = 0
        self._failures = 0

    def run(self, location: str) -> None:
        while self._received < self._blob.size:
            length = min(PIECE, self._blob.size - self._received)
            piece = self._blob.read(self._received, length)
            if len(piece) < length:
                raise UserError(
                    f"layer {self._blob.digest[:19]} ends after {self._received + len(piece)} bytes, and its image "
                    f"says {self._blob.size}",
                    remedy="Push that image again",
                )
            try:
                location = self._patch(location, piece)
            except ConnectionBroken as e:
                location = self._resume(location, e)
        self._finish(location)

    def _finish(self, location: str) -> None:
        params = httpx2.URL(location).params.set("digest", self._blob.digest)
        url = str(httpx2.URL(location).copy_with(params=params))
        answer = self._registry.ask("PUT", url, content=b"", push=True, none_on=(404,))
        # After a broken connection the request is repeated, and by then the upload may be finished.
        if answer is None and not self._registry.has_blob(self._repository, self._blob.digest):
            raise UserError(
                f"registry {self._registry.host} did not accept layer {self._blob.digest[:19]}", remedy="Push again"
            )

    def _patch(self, location: str, piece: bytes) -> str:
        last = self._received + len(piece) - 1
        headers = {"Content-Type": "application/octet-stream", "Content-Range": f"{self._received}-{last}"}
        answer = self._registry.ask(
            "PATCH", location, headers=headers, content=piece, push=True, none_on=UPLOAD_LOST, tries=1
        )
        if answer is None:
            raise ConnectionBroken("the registry forgot the upload")
        self._arrived(last + 1)
        return _location(answer)

    def _resume(self, location: str, error: ConnectionBroken) -> str:
        """After a broken connection: how much arrived, and where to resume. Some registries drop a partial piece."""
        self._failures += 1
        if self._failures >= TRIES:
            raise UserError(
                f"registry {self._registry.host} broke off {TRIES} times while a layer was sent: {error}",
                remedy="Check the network and push again: it resumes where it stopped",
            ) from error
        pause(self._failures)
        answer = self._registry.ask("GET", location, push=True, none_on=UPLOAD_LOST)
        if answer is None:
            self._arrived(0)
            restarted = _begin(self._registry, self._repository)
            assert restarted is not None
            return restarted
        last = answer.headers.get("range", "").rpartition("-")[2]
        received = int(last) + 1 if last.isdigit() else 0
        self._arrived(received if received > 1 else 0)  # `0-0` means that it has nothing
        return _location(answer)

    def _arrived(self, received: int) -> None:
        self._progress(received - self._received)
        self._received = received
        if received > self._most:
            self._most, self._failures = received, 0


def _location(answer: httpx2.Response) -> str:
    try:
        location = httpx2.URL(urljoin(str(answer.request.url), answer.headers["location"]))
    except (KeyError, ValueError, httpx2.InvalidURL):
        raise UserError(
            f"registry {answer.request.url.host} does not say where to upload a layer", remedy="Ask its administrator"
        ) from None
    return str(location)
