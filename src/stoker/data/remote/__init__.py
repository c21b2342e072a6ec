"""Data from elsewhere: hf://, s3://, gs://, https://. To add a scheme: a module with what `Place` names, and a line."""

import hashlib
import importlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from stoker.data.files import DataFile, text_problem
from stoker.data.remote.addresses import shown
from stoker.data.remote.transfer import copy, is_as_told, is_hash
from stoker.data.sources import SOURCES, format_of
from stoker.spec.errors import MissingExtra, UserError

SCHEMES = {  # scheme -> the module that knows it
    "hf": "stoker.data.remote.hub",
    "s3": "stoker.data.remote.bucket",
    "gs": "stoker.data.remote.bucket",
    "https": "stoker.data.remote.web",
    "http": "stoker.data.remote.web",
}
FETCHED_FOLDER = ".fetched"
AT_ONCE = 8
LONGEST_NAME = 100  # bytes: a file system takes 255, and a mark and an ending come with it


class Place(Protocol):
    def find(self, word: str) -> list[tuple[str, str, int, str]]:
        """(url, name, size, tag) of the files that a word of data.path means, in a fixed order.

        A tag changes with the content. A url leads to that very file, whatever becomes of what the word means.
        """

    def read(self, url: str, start: int, tag: str) -> Iterator[bytes]:
        """The bytes of a file from `start` on. Raises Broken where another try may go better."""


def is_remote(word: str) -> bool:
    return "://" in word


def find(word: str) -> list[DataFile]:
    """The files that a word of data.path means. Nothing is fetched yet."""
    found = []
    for url, name, size, tag in place_of(word).find(word):
        path, format = Path(name), format_of(Path(name))
        if format not in SOURCES:
            raise UserError(
                f"{shown(url)}: {format.upper()} files are read from this machine alone",
                remedy="Fetch them first, or name the text alone",
            )
        found.append(DataFile(path=path, name=name, format=format, stamp=[size], sha256=tag, problem=None, url=url))
    return found


def identity(file: DataFile) -> list[str | int]:
    """What the content of a file is known by: its hash, or a tag that means something only at its place."""
    if file.url is None or is_hash(file.sha256):
        return [file.name, file.sha256]
    # A query may name the file or, changing by the hour, sign it. Who signs tells an ETag.
    place = shown(file.url) if file.sha256.startswith("etag:") else file.url
    return [file.name, file.sha256, place, file.size]


def kept_in(file: DataFile, folder: Path) -> DataFile:
    """The same file, to be fetched into a folder: under a name of its own, with the endings that tell its format."""
    if file.url is None:
        return file
    mark = hashlib.sha256(f"{file.url}\n{file.sha256}".encode()).hexdigest()[:16]
    name = file.path.name.encode(errors="ignore")[-LONGEST_NAME:].decode(errors="ignore")
    return replace(file, path=folder / FETCHED_FOLDER / f"{mark}-{name}")


def fetch(file: DataFile) -> Iterator[int]:
    """Have a file here, and tell of the bytes as they come. What an interrupted fetch has left is not fetched again."""
    if file.url is None or file.path.is_file():
        return
    file.path.parent.mkdir(parents=True, exist_ok=True)
    place, url = place_of(file.url), file.url
    partial = file.path.with_name(f"{file.path.name}.part")
    yield from copy(lambda start: place.read(url, start, file.sha256), partial, size=file.size, name=shown(url))
    if not is_as_told(partial, file.sha256):
        partial.unlink()
        raise UserError(f"{shown(url)} came out damaged", remedy="Run the same command again")
    partial.replace(file.path)


def fetch_all(files: Iterable[DataFile]) -> Iterator[int]:
    """Several at once: of small files it is the waiting that takes the time."""
    missing = [file for file in files if file.url and not file.path.is_file()]
    if len(missing) == 1:
        yield from fetch(missing[0])
    elif missing:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(lambda file: sum(fetch(file)), missing)


def problem_of(file: DataFile) -> str | None:
    """Why a file that was fetched cannot be read as text at all; of a file on this machine that is known before."""
    return _text_problem(file.path, file.format) if file.url else None


def forget(file: DataFile) -> None:
    """Its tokens are made: the bytes are not needed again."""
    if file.url:
        file.path.unlink(missing_ok=True)


_text_problem = lru_cache(16)(text_problem)  # a file is read part by part, and checked once


def place_of(word: str) -> Place:
    """The module that knows the word's scheme."""
    scheme = word.partition("://")[0]
    if scheme not in SCHEMES:
        raise UserError(
            f"{shown(word)}: nothing can be read from {scheme}://",
            remedy=f"Use files and folders here, or {', '.join(f'{name}://' for name in SCHEMES if name != 'http')}",
        )
    try:
        place: Place = importlib.import_module(SCHEMES[scheme])
    except ModuleNotFoundError as e:
        if (e.name or "").startswith("stoker"):
            raise
        raise MissingExtra(e.name or scheme, "train") from e
    return place
