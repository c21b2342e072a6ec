"""Text from a user's function: written to a JSON lines file once, then prepared like any other."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stoker.data.sources.document import BadRecord, text_of
from stoker.spec.code import explain, is_code, load_code
from stoker.spec.data import Data
from stoker.spec.errors import StokerError, UserError

KEY = "data.path"
TEXTS_FOLDER = "texts"
PROGRESS_EVERY_S = 0.2

Functions = dict[str, Callable[[], Any]]


def functions(data: Data) -> Functions:
    """Imports the functions that data.path names; called before any file is written."""
    loaded = {name: load_code(name, KEY) for name in data.paths if is_code(name)}
    for name, function in loaded.items():
        if not callable(function):
            raise _error(
                name,
                f"it is of type {type(function).__name__}, not a function",
                remedy="Name a function that yields texts",
            )
    return loaded


def written_to_files(data: Data, functions: Functions, folder: Path, *, progress: Callable[[int], None]) -> Data:
    """The same data with a file instead of each function. `progress` gets the bytes written so far."""
    if not functions:
        return data
    texts = folder / TEXTS_FOLDER
    texts.mkdir(parents=True, exist_ok=True)
    files = {name: _write(name, function, data, texts, progress) for name, function in functions.items()}
    return data.model_copy(update={"path": [str(files.get(path, path)) for path in data.paths]})


def _write(name: str, function: Callable[[], Any], data: Data, folder: Path, progress: Callable[[int], None]) -> Path:
    """A file that is named after its content: the same texts give the same file, and the same token set."""
    partial = folder / f".{os.getpid()}-{time.time_ns()}.part"
    sha256, size, shown_at = hashlib.sha256(), 0, 0.0
    try:
        with open(partial, "wb") as file:
            for line in _lines(name, function, data):
                file.write(line)
                sha256.update(line)
                size += len(line)
                if time.monotonic() - shown_at >= PROGRESS_EVERY_S:
                    shown_at = time.monotonic()
                    progress(size)
            progress(size)
            file.flush()
            os.fsync(file.fileno())
        if not size:
            raise _error(name, "it yields nothing", remedy="Yield the texts to train on")
        final = folder / f"{sha256.hexdigest()[:32]}.jsonl"
        if not final.exists():  # an existing file keeps its mtime, and is not read again
            partial.replace(final)
        return final
    finally:
        partial.unlink(missing_ok=True)


def _lines(name: str, function: Callable[[], Any], data: Data) -> Iterator[bytes]:
    for number, item in enumerate(_items(name, function), 1):
        try:
            text = text_of({data.field: item} if isinstance(item, str) else item, data.field)
        except BadRecord as e:
            if not data.skip_bad:
                problem = e if isinstance(item, (str, dict)) else f"is of type {type(item).__name__}, not a text"
                raise _error(
                    name,
                    f"its item {number} {problem}",
                    remedy=f"Yield texts, or dicts with a text as '{data.field}'; data.skip_bad=true leaves others out",
                ) from None
            yield b"null\n"  # the reader counts skipped records
            continue
        yield json.dumps({data.field: text}, ensure_ascii=False).encode() + b"\n"


def _items(name: str, function: Callable[[], Any]) -> Iterator[object]:
    try:
        texts = function()
        if isinstance(texts, (str, bytes, dict)) or not isinstance(texts, Iterable):
            raise _error(
                name,
                f"it returned a value of type {type(texts).__name__}, not texts",
                remedy="Yield the texts one after the other",
            )
        yield from texts
    except StokerError:
        raise
    except (Exception, SystemExit) as e:
        raise _error(name, f"it fails: {explain(e, name)}", remedy="Fix it and run the same command again") from e


def _error(name: str, problem: str, *, remedy: str) -> UserError:
    return UserError(f"{KEY} names {name}, and {problem}", remedy=remedy)
