"""The Python, packages and libc in a layer, from its file names and three small files."""

import importlib
import itertools
import json
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from stoker.spec.errors import UserError

DESCRIPTION = "opt/stoker/base.json"
"""Stoker's own base images describe themselves here, in their last layer: the others need not be read."""
PROGRAM = re.compile(r"(?:.+/)?bin/python(?:3(?:\.\d+)?)?")
HOME = re.compile(r"(.*lib(?:64)?/python3\.\d+)/os\.py")
PACKAGE = re.compile(r"(.*)/([^/]+)\.(?:dist|egg)-info(?:/.*)?")
GLIBC = re.compile(r"(?:.+/)?libc(?:-2\.\d+)?\.so(?:\.6)?")
GLIBC_VERSION = re.compile(rb"GNU C Library[^\n]*? version (\d+\.\d+)")
MUSL = re.compile(r"lib/ld-musl-[\w-]+\.so\.1")
APK = "lib/apk/db/installed"
MUSL_VERSION = re.compile(rb"^P:musl\nV:(\d+\.\d+)", re.MULTILINE)
PYTHON, LIBC = re.compile(r"3\.\d+"), re.compile(r"(?:glibc|musl) \d+\.\d+")
MAX_FILE = 16 << 20  # bytes of a file that is read
BLOCK = 1 << 20
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(kw_only=True, slots=True)
class Contents:
    """Paths are without the leading slash. Written to the cache as JSON."""

    programs: dict[str, str | None] = field(default_factory=dict)
    """Every bin/python… -> the target of the link, or None for a file."""
    links: dict[str, str] = field(default_factory=dict)
    """Links at the root, such as bin -> usr/bin."""
    homes: list[str] = field(default_factory=list)
    """Folders of a standard library."""
    venvs: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    """Folder/name-version of every installed package."""
    libc: str | None = None
    """Such as `glibc 2.36` or `musl 1.2`."""
    deleted: list[str] = field(default_factory=list)
    """Files of lower layers that this one deletes."""
    description: dict[str, Any] | None = None


def read_contents(parts: Iterator[bytes], name: str) -> Contents:
    """From the compressed bytes of a layer. `name`: for messages."""
    contents = Contents()
    packages: dict[str, None] = {}
    with members(Unpacked(parts, name)) as tar:
        for member in tar:
            _read_member(tar, member, contents, packages)
            if contents.description:  # it describes this layer and those below
                break
    contents.packages = list(packages)
    return contents


@contextmanager
def members(layer: "Unpacked") -> Iterator[tarfile.TarFile]:
    """Its tar file, to be read once. Raises UserError if it is damaged."""
    try:
        with tarfile.open(fileobj=cast(Any, layer), mode="r|", bufsize=BLOCK) as tar:
            yield tar
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as e:
        raise UserError(f"{layer.name} is not a readable layer: {e}", remedy="Push that image again") from e


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, contents: Contents, packages: dict[str, None]) -> None:
    path = posixpath.normpath(member.name).lstrip("/")
    folder, _, last = path.rpartition("/")
    if last.startswith(WHITEOUT):
        contents.deleted.append(folder if last == OPAQUE else posixpath.join(folder, last.removeprefix(WHITEOUT)))
    elif package := PACKAGE.fullmatch(path):
        packages[f"{package[1]}/{package[2]}"] = None
    elif PROGRAM.fullmatch(path):
        contents.programs[path] = member.linkname if member.issym() else None
    elif home := HOME.fullmatch(path):
        contents.homes.append(home[1])
    elif last == "pyvenv.cfg":
        contents.venvs.append(folder)
    elif member.issym() and not folder:
        contents.links[path] = member.linkname
    elif member.isfile() and GLIBC.fullmatch(path) and (version := GLIBC_VERSION.search(_content(tar, member))):
        contents.libc = f"glibc {version[1].decode()}"
    elif member.isfile() and path == APK and (version := MUSL_VERSION.search(_content(tar, member))):
        contents.libc = f"musl {version[1].decode()}"
    elif MUSL.fullmatch(path):
        contents.libc = contents.libc or "musl 1.1"  # the oldest version that wheels exist for
    elif member.isfile() and path == DESCRIPTION:
        contents.description = _description(_content(tar, member))


def _description(content: bytes) -> dict[str, Any]:
    """Without a valid libc, it is searched in the layers."""
    try:
        values = json.loads(content)
        python, libc = PYTHON.fullmatch(values["python"]), LIBC.fullmatch(str(values.get("libc")))
        packages = {name: version for name, version in values.get("packages", {}).items() if isinstance(version, str)}
    except (ValueError, KeyError, TypeError, AttributeError):
        python = None
    if python is None:
        raise ValueError(f"its /{DESCRIPTION} is not a valid description")
    return {"python": python[0], "packages": packages} | ({"libc": libc[0]} if libc else {})


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read(MAX_FILE) if file else b""


class Unpacked:
    """A layer's bytes as its tar file: gzip, zstd or plain, recognized by the first bytes."""

    def __init__(self, parts: Iterator[bytes], name: str) -> None:
        """`name` is for messages. `parts` stays open: bytes after the tar's end can still be read."""
        self.name = name
        first = next(parts, b"")
        if first.startswith(b"\x1f\x8b"):
            self._parts = _gunzip(first, parts)
        elif first.startswith(b"\x28\xb5\x2f\xfd"):
            self._parts = _unzstd(first, parts, name)
        else:
            self._parts = itertools.chain([first], parts)
        self._rest = b""

    def read(self, size: int) -> bytes:
        parts = [self._rest]
        length = len(self._rest)
        while length < size and (part := next(self._parts, None)) is not None:
            parts.append(part)
            length += len(part)
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]


def _gunzip(first: bytes, parts: Iterator[bytes]) -> Iterator[bytes]:
    """All gzip members: layers for lazy loading consist of many."""
    unzip = zlib.decompressobj(31)
    for part in itertools.chain([first], parts):
        rest = part
        while rest:
            if unzip.eof:
                unzip = zlib.decompressobj(31)
            yield unzip.decompress(rest)
            rest = unzip.unused_data


def _unzstd(first: bytes, parts: Iterator[bytes], name: str) -> Iterator[bytes]:
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        raise UserError(
            f"{name} is compressed with zstd, and the package for it is not installed",
            remedy="Run: pip install zstandard",
        ) from None
    unzip = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
    for part in itertools.chain([first], parts):
        try:
            yield unzip.decompress(part)
        except zstandard.ZstdError as e:
            raise tarfile.ReadError(str(e)) from e
