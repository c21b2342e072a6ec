"""What a token set says of itself, as the audit reads it: typed, with no help from the code that wrote it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from stoker.rundir.records import Count, Record, read_records, typed, typed_value
from stoker.spec.errors import UserError
from stoker.spec.regular import read_regular

INDEX_BYTES = 256 << 20  # of a set of a million shards
T = TypeVar("T")

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenShard:
    file: FileName
    sha256: str
    tokens: Count = 0
    records: Count = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenIndex:
    key: str
    dtype: Literal["uint16", "uint32"]
    train: list[TokenShard] = field(default_factory=list)
    window: Count | None = None
    kind: str = ""
    length: Count = 0
    predictions: Count = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shuffled:
    window: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """Of a stream that is not all made yet."""

    key: str
    dtype: Literal["uint16", "uint32"]
    data: _Shuffled


def read_index(folder: Path) -> TokenIndex:
    """Of a stream that is not all made yet, what its journal has."""
    index = _read(TokenIndex, folder / "index.json")
    if index is not None:
        return index
    header = _read(_Header, folder / "stream.json")
    if header is None:
        raise UserError(f"the run's token set {folder} is gone", remedy="Put it back, or prepare it again")
    made = [typed_value(TokenShard, one["train"]) for one in read_records(folder / "journal.jsonl", _has_shard)]
    shards = [shard for shard in made if shard.tokens]
    return TokenIndex(key=header.key, dtype=header.dtype, window=header.data.window, train=shards)


def _read(kind: type[T], path: Path) -> T | None:
    try:
        return typed(kind, read_regular(path, most=INDEX_BYTES), max_bytes=INDEX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, IsADirectoryError) as e:
        raise UserError(f"{path} is damaged: {e}", remedy="Restore it, or prepare the data again") from e


def _has_shard(record: Record) -> bool:
    try:
        typed_value(TokenShard, record["train"])
    except (ValueError, KeyError):
        return False
    return True
