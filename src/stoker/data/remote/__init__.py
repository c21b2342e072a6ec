"""Remote data: hf://, s3://, gs://, https://. To add a scheme: a module with the functions of `Scheme`, and a line."""

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast

from stoker.data.files import DataFile, text_problem
from stoker.data.remote.addresses import shown
from stoker.data.remote.transfer import copy, is_hash, matches_tag
from stoker.data.sources import SOURCES, format_of
from stoker.spec import extras
from stoker.spec.errors import UserError

SCHEMES = {  # scheme -> its module
    "hf": "stoker.data.remote.hub",
    "s3": "stoker.data.remote.bucket",
    "gs": "stoker.data.remote.bucket",
    "https": "stoker.data.remote.web",
    "http": "stoker.data.remote.web",
}
FETCHED_FOLDER = ".fetched"
CONCURRENT_FETCHES = 8
MAX_NAME_BYTES = 100  # file systems allow 255, and a hash and a suffix are added


class Scheme(Protocol):
    def find(self, location: str) -> list[tuple[str, str, int, str]]:
        """(url, name, size, tag) of the files at an entry of data.path, in a fixed order.

        A tag changes with the content. A url keeps its content, even when files are added to the location.
        """

    def read(self, url: str, start: int, tag: str) -> Iterator[bytes]:
        """The bytes of a file from `start` on. Raises Interrupted on a temporary failure."""


def is_remote(location: str) -> bool:
    return "://" in location


def find(location: str) -> list[DataFile]:
    """The files at an entry of data.path. Nothing is fetched yet."""
    files = []
    for url, name, size, tag in scheme_of(location).find(location):
        path, format = Path(name), format_of(Path(name))
        if format not in SOURCES:
            raise UserError(
                f"{shown(url)}: {format.upper()} files can only be read from this machine",
                remedy="Fetch them first, or name only the text",
            )
        files.append(DataFile(path=path, name=name, format=format, stamp=[size], sha256=tag, problem=None, url=url))
    return files


def identity(file: DataFile) -> list[str | int]:
    """What identifies the content of a file: its hash, or a tag that is valid at its URL only."""
    if file.url is None or is_hash(file.sha256):
        return [file.name, file.sha256]
    # A query may name the file, or sign the URL for some hours. Servers that sign send an ETag.
    url = shown(file.url) if file.sha256.startswith("etag:") else file.url
    return [file.name, file.sha256, url, file.size]


def kept_in(file: DataFile, folder: Path) -> DataFile:
    """The same file with the path that it is fetched to: a unique name, with the suffixes of its format."""
    if file.url is None:
        return file
    mark = hashlib.sha256(f"{file.url}\n{file.sha256}".encode()).hexdigest()[:16]
    name = file.path.name.encode(errors="ignore")[-MAX_NAME_BYTES:].decode(errors="ignore")
    return replace(file, path=folder / FETCHED_FOLDER / f"{mark}-{name}")


def fetch(file: DataFile) -> Iterator[int]:
    """Fetches a file and yields the number of bytes as they come. Resumes an interrupted fetch."""
    if file.url is None or file.path.is_file():
        return
    file.path.parent.mkdir(parents=True, exist_ok=True)
    scheme, url = scheme_of(file.url), file.url
    partial = file.path.with_name(f"{file.path.name}.part")
    yield from copy(lambda start: scheme.read(url, start, file.sha256), partial, size=file.size, name=shown(url))
    if not matches_tag(partial, file.sha256):
        partial.unlink()
        raise UserError(f"{shown(url)} was damaged on the way", remedy="Run the same command again")
    partial.replace(file.path)


def fetch_all(files: Iterable[DataFile]) -> Iterator[int]:
    """Fetches several files at once: with small files, most of the time is latency."""
    missing = [file for file in files if file.url and not file.path.is_file()]
    if len(missing) == 1:
        yield from fetch(missing[0])
    elif missing:
        with ThreadPoolExecutor(CONCURRENT_FETCHES) as pool:
            yield from pool.map(lambda file: sum(fetch(file)), missing)


def problem_of(file: DataFile) -> str | None:
    """Why a fetched file cannot be read as text; None for a file of this machine, which was checked before."""
    return _text_problem(file.path, file.format) if file.url else None


def forget(file: DataFile) -> None:
    """Deletes a fetched file whose tokens are written."""
    if file.url:
        file.path.unlink(missing_ok=True)


_text_problem = lru_cache(16)(text_problem)  # a file is read in parts, and checked once


def scheme_of(location: str) -> Scheme:
    """The module for the scheme of a location."""
    scheme = location.partition("://")[0]
    if scheme not in SCHEMES:
        raise UserError(
            f"{shown(location)}: nothing can be read from {scheme}://",
            remedy=f"Use files and folders here, or {', '.join(f'{name}://' for name in SCHEMES if name != 'http')}",
        )
    return cast(Scheme, extras.load_extra(SCHEMES[scheme]))
