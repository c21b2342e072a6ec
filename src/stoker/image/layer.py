"""Writes a layer reproducibly: the same content gives the same bytes, at any time and on any machine."""

import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MTIME = 315532800  # 1980-01-01, the earliest time that zip files support
LEVEL = 6
BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerEntry:
    """A file, a link, or else a folder."""

    name: str
    """Its path in the image, without the leading slash."""
    source: Path | bytes | None = None
    link: str | None = None
    executable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    path: Path
    """The compressed tar."""
    size: int
    digest: str
    """Of the compressed bytes, which names the blob."""
    diff_id: str
    """Of the tar itself, independent of the compression."""


def write_layer(entries: Iterable[LayerEntry], to: Path) -> Layer:
    with open(to, "wb") as file:
        packed = _HashingGzip(file)
        with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT, bufsize=BLOCK) as tar:  # type: ignore[call-overload]
            for entry in sorted(entries, key=lambda entry: entry.name):
                _add(tar, entry)
        return packed.finish(to)


def _add(tar: tarfile.TarFile, entry: LayerEntry) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mtime = MTIME
    info.mode = 0o755 if entry.executable else 0o644  # as in git: the umask does not change the content
    if entry.link is not None:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
        tar.addfile(info)
    elif entry.source is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    elif isinstance(entry.source, bytes):
        info.size = len(entry.source)
        tar.addfile(info, io.BytesIO(entry.source))
    else:
        with open(entry.source, "rb") as file:
            info.size = entry.source.stat().st_size
            tar.addfile(info, file)


class _HashingGzip:
    """A stream for tarfile: hashes, compresses, and hashes again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._raw, self._packed = hashlib.sha256(), hashlib.sha256()
        self._zlib = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)  # 31: a gzip header, without name or time
        self._size = 0

    def write(self, data: bytes) -> int:
        self._raw.update(data)
        self._put(self._zlib.compress(data))
        return len(data)

    def finish(self, path: Path) -> Layer:
        self._put(self._zlib.flush())
        return Layer(
            path=path,
            size=self._size,
            digest=f"sha256:{self._packed.hexdigest()}",
            diff_id=f"sha256:{self._raw.hexdigest()}",
        )

    def _put(self, data: bytes) -> None:
        self._packed.update(data)
        self._size += len(data)
        self._file.write(data)
