"""The index of a token set as the audit reads it: typed, and independent of the code that wrote it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from stoker.rundir.records import Count, Record, read_records, typed, typed_value
from stoker.spec.errors import UserError
from stoker.spec.files import read_regular

INDEX_BYTES = 256 << 20  # at most: enough for a million shards
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
class _StreamHeader:
    """The header of a stream that is still being prepared."""

    key: str
    dtype: Literal["uint16", "uint32"]
    data: _Shuffled


def read_index(folder: Path) -> TokenIndex:
    """For a stream that is still being prepared: the shards in its journal."""
    index = _read(TokenIndex, folder / "index.json")
    if index is not None:
        return index
    header = _read(_StreamHeader, folder / "stream.json")
    if header is None:
        raise UserError(f"the run's token set {folder} is missing", remedy="Restore it, or prepare it again")
    shards = [shard for shard in read_records(folder / "journal.jsonl", _shard) if shard.tokens]
    return TokenIndex(key=header.key, dtype=header.dtype, window=header.data.window, train=shards)


def _read(kind: type[T], path: Path) -> T | None:
    try:
        return typed(kind, read_regular(path, max_bytes=INDEX_BYTES), max_bytes=INDEX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, IsADirectoryError) as e:
        raise UserError(f"{path} is damaged: {e}", remedy="Restore it, or prepare the data again") from e


def _shard(record: Record) -> TokenShard | None:
    return typed_value(TokenShard, record["train"]) if "train" in record else None
