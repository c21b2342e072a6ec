"""The files of a data set: which they are, what is in them, and whether they can be read."""

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
from stoker.spec.regular import check_regular, open_regular

CHUNK = 1 << 20

Stamp = list[int]  # size, time of change and inode: while they stay, the content is taken to stay
Known = tuple[Stamp, str, str | None]  # stamp, sha256, problem


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    path: Path
    name: str
    """Relative to what the user named: the same data at another place has the same names."""
    format: str
    stamp: Stamp
    sha256: str
    problem: str | None
    """Why it cannot be read as text at all."""
    url: str | None = None
    """Where it is fetched from, when it is not on this machine; `sha256` is then the tag that it has there."""

    @property
    def size(self) -> int:
        return self.stamp[0]


def discover(paths: str | Sequence[str]) -> list[tuple[Path, str]]:
    """(file, name) of all that files, folders and globs mean, in a fixed order; hidden and empty files are left out."""
    found: dict[Path, str] = {}
    for word in [paths] if isinstance(paths, str) else paths:
        for path, name in _matches(word):
            if path.stat().st_size:
                found.setdefault(path, name)
    if not found:
        named = paths if isinstance(paths, str) else ", ".join(paths)
        raise UserError(f"no text found in {named}", remedy="Name files, folders or globs that hold some text")
    return list(found.items())


def is_there(word: str) -> bool:
    """Whether a file, a folder or a glob means anything at all by now."""
    path = _place(word)
    return path.exists() or (glob.has_magic(word) and any(glob.iglob(str(path), recursive=True)))


def covers(word: str, file: Path) -> bool:
    """Whether `discover` would find a file, there or not yet, by a folder or a glob."""
    path, file = _place(word), Path(os.path.abspath(file))
    if path.is_file():
        return False
    if path.is_dir() or not glob.has_magic(word):
        return _is_below(Path(os.path.realpath(file)), Path(os.path.realpath(path)))
    return any(fits(path.parts, place.parts) and _is_below(file, place) for place in (file, *file.parents))


def fingerprint(
    found: list[tuple[Path, str]], *, cache: Path, threads: int, progress: Callable[[int, int], None]
) -> list[DataFile]:
    """Hash and check each file. What has not changed since the cache was written is not read again."""
    known = _read_cache(cache)
    sizes = [path.stat().st_size for path, _ in found]
    total, done, files = sum(sizes), 0, []
    progress(0, total)
    with ThreadPoolExecutor(threads) as pool:
        results = pool.map(lambda item: _inspect(item[0], item[1], known.get(str(item[0]))), found)
        for file, size in zip(results, sizes, strict=True):
            files.append(file)
            done += size
            progress(done, total)
    fresh = {str(file.path): (file.stamp, file.sha256, file.problem) for file in files}
    if any(known.get(path) != entry for path, entry in fresh.items()):
        write_atomic(cache, json.dumps(known | fresh))
    return files


def _matches(word: str) -> Iterator[tuple[Path, str]]:
    path = _place(word)
    if path.is_dir():
        yield from _walk(path, path)
    elif path.is_file():
        if not path.stat().st_size:
            raise UserError(f"{path} is empty", remedy="Name a file that has some text")
        yield path, path.name
    elif glob.has_magic(word):
        for match in sorted(glob.glob(str(path), recursive=True)):
            yield from _walk(Path(match), _fixed_part(path))
    else:
        raise _missing(path, word)


def _missing(path: Path, word: str) -> UserError:
    try:
        check_regular(path)
        reason = "is no regular file"
    except UserError as e:
        return e
    except FileNotFoundError:
        reason = "does not exist"
    except OSError as e:
        reason = f"cannot be read: {e.strerror}"
    return UserError(f"{word} {reason}", remedy="Check data.path: a file, a folder or a glob such as 'books/*.txt'")


def _place(word: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(word)))


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
    """As `_walk` sees it: hidden folders and files are left out."""
    return file.is_relative_to(folder) and not any(part.startswith(".") for part in file.relative_to(folder).parts)


def fits(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """The rules of glob.glob, for a path that need not be there."""
    if not pattern:
        return not parts
    first, *rest = pattern
    if first == "**" and fits(rest, parts):
        return True
    if not parts or (parts[0].startswith(".") and not first.startswith(".")):
        return False
    if first == "**":
        return fits(pattern, parts[1:])
    return fnmatch.fnmatchcase(parts[0], first) and fits(rest, parts[1:])


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
            while chunk := file.read(CHUNK):
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
    """Why a file of text is none; what is wrong with the records of others shows when they are read."""
    if format != "text":
        return None
    checker = Checker()
    with reading(path) as unpacked:
        while not checker.problem and (chunk := unpacked.read(CHUNK)):
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
