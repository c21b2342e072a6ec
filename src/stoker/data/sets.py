"""Token sets of every kind: prepared, a stream that is still growing, a mixture."""

from collections.abc import Callable
from pathlib import Path

from stoker.data.any_set import AnySet, open_prepared
from stoker.data.bert.pairs import Pairs
from stoker.data.mix_file import MIX_FILE
from stoker.data.mixture import Mixture, mixed
from stoker.data.prepare import PrepareProgress, ignore, prepared
from stoker.data.shards import INDEX_FILE
from stoker.data.stream.journal import HEADER_FILE
from stoker.data.stream.reader import StreamSet
from stoker.data.stream.writer import streamed
from stoker.spec.data import Data


def set_of(
    data: Data, store: Path, *, pairs: Pairs | None = None, progress: Callable[[PrepareProgress], None] = ignore
) -> AnySet:
    """The set of `data` in the store, prepared now if necessary; for a stream, only the first window."""
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
    return open_prepared(folder)
