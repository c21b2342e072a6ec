"""Token sets of every kind: plain, a stream that is still being made, a mixture of several."""

from collections.abc import Callable
from pathlib import Path

from stoker.data.mixture import MIX_FILE, Mixture, mixed
from stoker.data.prepare import Progress, ignore, prepared
from stoker.data.shards import INDEX_FILE, TokenSet
from stoker.data.stream.journal import HEADER_FILE
from stoker.data.stream.making import streamed
from stoker.data.stream.reading import StreamSet
from stoker.spec.run import Data


def set_of(data: Data, store: Path, *, progress: Callable[[Progress], None] = ignore) -> TokenSet:
    """The token set of `data`, in the store, made now if need be; of a stream, its first window."""
    make = mixed if data.mix else streamed if data.stream else prepared
    return make(data, store, progress=progress)


def is_set(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (INDEX_FILE, MIX_FILE, HEADER_FILE))


def open_set(folder: Path) -> TokenSet:
    if (folder / MIX_FILE).is_file():
        return Mixture.open(folder)
    if (folder / HEADER_FILE).is_file() and not (folder / INDEX_FILE).is_file():
        return StreamSet.open(folder)
    return TokenSet.open(folder)
