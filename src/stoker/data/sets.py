"""Token sets of every kind: plain, a stream that is still being made, a mixture of several."""

from collections.abc import Callable
from pathlib import Path

from stoker.data.mix_file import MIX_FILE
from stoker.data.mixture import Mixture, mixed
from stoker.data.pairs import AnySet, Pairs, open_plain
from stoker.data.prepare import Progress, ignore, prepared
from stoker.data.shards import INDEX_FILE
from stoker.data.stream.journal import HEADER_FILE
from stoker.data.stream.making import streamed
from stoker.data.stream.reading import StreamSet
from stoker.spec.data import Data


def set_of(
    data: Data, store: Path, *, pairs: Pairs | None = None, progress: Callable[[Progress], None] = ignore
) -> AnySet:
    """The set of `data`, in the store, made now if need be; of a stream, its first window."""
    if data.mix or data.stream:
        return (mixed if data.mix else streamed)(data, store, progress=progress)
    return prepared(data, store, pairs=pairs, progress=progress)


def is_set(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (INDEX_FILE, MIX_FILE, HEADER_FILE))


def open_set(folder: Path) -> AnySet:
    if (folder / MIX_FILE).is_file():
        return Mixture.open(folder)
    if (folder / HEADER_FILE).is_file() and not (folder / INDEX_FILE).is_file():
        return StreamSet.open(folder)
    return open_plain(folder)
