"""The files of a data set: finds, hashes and checks them."""

import fnmatch
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stoker.data.sources import format_of
from stoker.data.sources.stream import is_compressed, reading
from stoker.data.sources.text import Checker
from stoker.rundir import write_atomic
from stoker.spec.errors import UserError
from stoker.spec.files import NotRegularFile, check_regular, open_regular

CHUNK_BYTES = 1 << 20

Stamp = list[int]  # size, mtime and inode: while they are the same, so is the content
Known = tuple[Stamp, str, str | None]  # stamp, sha256, problem


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    path: Path
    name: str
    """Relative to the path in data.path: the same data elsewhere has the same names."""
    format: str
    stamp: Stamp
    sha256: str
    problem: str | None
    """Why it cannot be read as text."""
    url: str | None = None
    """Where it is fetched from, for a remote file; `sha256` is then its tag on the server."""

    @property
    def size(self) -> int:
        return self.stamp[0]


class NoText(UserError):
    """A path in data.path leads to no text."""


def discover(paths: str | Sequence[str]) -> list[tuple[Path, str]]:
    """(file, name) of all files in paths, folders and globs, in a fixed order; without hidden and empty files."""
    name_by_path: dict[Path, str] = {}
    for location in [paths] if isinstance(paths, str) else paths:
        for path, name in _matches(location):
            if path.stat().st_size:
                name_by_path.setdefault(path, name)
    if not name_by_path:
        named = paths if isinstance(paths, str) else ", ".join(paths)
        raise NoText(f"no text found in {named}", remedy="Name files, folders or globs with some text")
    return list(name_by_path.items())


def exists(location: str) -> bool:
    """Whether a file, a folder, or a match of a glob exists."""
    path = _absolute(location)
    return path.exists() or (glob.has_magic(location) and any(glob.iglob(str(path), recursive=True)))


def covers(location: str, file: Path) -> bool:
    """Whether `discover` finds a file, existing or not, in a folder or by a glob."""
    path, file = _absolute(location), Path(os.path.abspath(file))
    if path.is_file():
        return False
    if path.is_dir() or not glob.has_magic(location):
        return _is_below(Path(os.path.realpath(file)), Path(os.path.realpath(path)))
    return any(matches_glob(path.parts, place.parts) and _is_below(file, place) for place in (file, *file.parents))


def fingerprint(
    paths: list[tuple[Path, str]], *, cache: Path, threads: int, progress: Callable[[int, int], None]
) -> list[DataFile]:
    """Hashes and checks each file; files that are unchanged since the cache was written are not read again."""
    known = _read_cache(cache)
    sizes = [path.stat().st_size for path, _ in paths]
    total, done, files = sum(sizes), 0, []
    progress(0, total)
    with ThreadPoolExecutor(threads) as pool:
        results = pool.map(lambda item: _inspect(item[0], item[1], known.get(str(item[0]))), paths)
        for file, size in zip(results, sizes, strict=True):
            files.append(file)
            done += size
            progress(done, total)
    current = {str(file.path): (file.stamp, file.sha256, file.problem) for file in files}
    if any(known.get(path) != entry for path, entry in current.items()):
        write_atomic(cache, json.dumps(known | current))
    return files


def _matches(location: str) -> Iterator[tuple[Path, str]]:
    path = _absolute(location)
    if path.is_dir():
        yield from _walk(path, path)
    elif path.is_file():
        if not path.stat().st_size:
            raise NoText(f"{path} is empty", remedy="Name a file with some text")
        yield path, path.name
    elif glob.has_magic(location):
        for match in sorted(glob.glob(str(path), recursive=True)):
            yield from _walk(Path(match), _fixed_part(path))
    else:
        raise _missing(path, location)


def _missing(path: Path, location: str) -> NoText | NotRegularFile:
    try:
        check_regular(path)
        reason = "is not a regular file"
    except NotRegularFile as e:
        return e
    except FileNotFoundError:
        reason = "does not exist"
    except OSError as e:
        reason = f"cannot be read: {e.strerror}"
    return NoText(f"{location} {reason}", remedy="Check data.path: a file, a folder or a glob such as 'books/*.txt'")


def _absolute(location: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(location)))


def _walk(path: Path, base: Path) -> Iterator[tuple[Path, str]]:
    if path.is_file():
        yield path, str(path.relative_to(base))
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield file, str(file.relative_to(base))


def _fixed_part(pattern: Path) -> Path:
    parts = []
    for part in pattern.parts:
        if glob.has_magic(part):
            break
        parts.append(part)
    return Path(*parts)


def _is_below(file: Path, folder: Path) -> bool:
    """As in `_walk`, without hidden folders and files."""
    return file.is_relative_to(folder) and not any(part.startswith(".") for part in file.relative_to(folder).parts)


def matches_glob(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """The rules of glob.glob, for a path that need not exist."""
    if not pattern:
        return not parts
    first, *rest = pattern
    if first == "**" and matches_glob(rest, parts):
        return True
    if not parts or (parts[0].startswith(".") and not first.startswith(".")):
        return False
    if first == "**":
        return matches_glob(pattern, parts[1:])
    return fnmatch.fnmatchcase(parts[0], first) and matches_glob(rest, parts[1:])


def _inspect(path: Path, name: str, known: Known | None) -> DataFile:
    format, stamp = format_of(path), stamp_of(path)
    if known and known[0] == stamp:
        _, sha256, problem = known
    else:
        sha256, problem = _read(path, format)
    return DataFile(path=path, name=name, format=format, stamp=stamp, sha256=sha256, problem=problem)


def _read(path: Path, format: str) -> tuple[str, str | None]:
    sha256, checker = hashlib.sha256(), Checker()
    plain_text = format == "text" and not is_compressed(path)
    try:
        with open_regular(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                sha256.update(chunk)
                if plain_text:
                    checker.feed(chunk)
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}", remedy="Check the file and its permissions") from e
    if plain_text:
        checker.feed(b"", final=True)
        return sha256.hexdigest(), checker.problem
    return sha256.hexdigest(), text_problem(path, format)


def text_problem(path: Path, format: str) -> str | None:
    """Why a text file is not text; problems of other formats show when they are read."""
    if format != "text":
        return None
    checker = Checker()
    with reading(path) as unpacked:
        while not checker.problem and (chunk := unpacked.read(CHUNK_BYTES)):
            checker.feed(chunk)
    checker.feed(b"", final=True)
    return checker.problem


def stamp_of(path: Path) -> Stamp:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _read_cache(cache: Path) -> dict[str, Known]:
    try:
        return {
            path: (stamp, sha256, problem) for path, (stamp, sha256, problem) in json.loads(cache.read_text()).items()
        }
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
