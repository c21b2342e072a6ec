"""Text from the user's own function: its texts are written down once, as JSON lines, and prepared like any others."""

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
SHOWN_EVERY = 0.2  # seconds

Functions = dict[str, Callable[[], Any]]


def functions(data: Data) -> Functions:
    """The functions that the data names, imported: to be called before anything is made."""
    found = {word: load_code(word, KEY) for word in _words(data) if is_code(word)}
    for word, function in found.items():
        if not callable(function):
            raise _wrong(
                word, f"it is no function but {type(function).__name__}", remedy="Name a function that yields texts"
            )
    return found


def written_down(data: Data, functions: Functions, folder: Path, *, progress: Callable[[int], None]) -> Data:
    """The same data with a file in the place of each function. `progress` is told the bytes written so far."""
    if not functions:
        return data
    texts = folder / TEXTS_FOLDER
    texts.mkdir(parents=True, exist_ok=True)
    files = {word: _write(word, function, data, texts, progress) for word, function in functions.items()}
    return data.model_copy(update={"path": [str(files.get(word, word)) for word in _words(data)]})


def _write(word: str, function: Callable[[], Any], data: Data, folder: Path, progress: Callable[[int], None]) -> Path:
    """A file that is named after what it holds: the same texts are the same file, and the same token set."""
    partial = folder / f".{os.getpid()}-{time.time_ns()}.part"
    sha256, size, shown = hashlib.sha256(), 0, 0.0
    try:
        with open(partial, "wb") as file:
            for line in _lines(word, function, data):
                file.write(line)
                sha256.update(line)
                size += len(line)
                if time.monotonic() - shown >= SHOWN_EVERY:
                    shown = time.monotonic()
                    progress(size)
            progress(size)
            file.flush()
            os.fsync(file.fileno())
        if not size:
            raise _wrong(word, "it yields nothing", remedy="Yield the texts to train on")
        final = folder / f"{sha256.hexdigest()[:32]}.jsonl"
        if not final.exists():  # one that is there keeps its time of change, and is not read again
            partial.replace(final)
        return final
    finally:
        partial.unlink(missing_ok=True)


def _lines(word: str, function: Callable[[], Any], data: Data) -> Iterator[bytes]:
    for number, item in enumerate(_items(word, function), 1):
        try:
            text = text_of({data.field: item} if isinstance(item, str) else item, data.field)
        except BadRecord as e:
            if not data.skip_bad:
                problem = e if isinstance(item, (str, dict)) else f"is no text but {type(item).__name__}"
                raise _wrong(
                    word,
                    f"its item {number} {problem}",
                    remedy=f"Yield texts, or dicts with a text as '{data.field}'; data.skip_bad=true leaves others out",
                ) from None
            yield b"null\n"  # the reader counts what is left out
            continue
        yield json.dumps({data.field: text}, ensure_ascii=False).encode() + b"\n"


def _items(word: str, function: Callable[[], Any]) -> Iterator[object]:
    try:
        found = function()
        if isinstance(found, (str, bytes, dict)) or not isinstance(found, Iterable):
            raise _wrong(
                word, f"it returned no texts but {type(found).__name__}", remedy="Yield the texts one after the other"
            )
        yield from found
    except StokerError:
        raise
    except (Exception, SystemExit) as e:
        raise _wrong(word, f"it fails: {explain(e, word)}", remedy="Mend it and run the same command again") from e


def _words(data: Data) -> list[str]:
    return data.paths


def _wrong(word: str, problem: str, *, remedy: str) -> UserError:
    return UserError(f"{KEY} names {word}, and {problem}", remedy=remedy)
