"""Parses the records of a run directory: typed, with limits on size, depth and numbers.

A line of metrics.jsonl or events.jsonl that is not a record is skipped and counted; a file that is one record
(exit.json, data.json …) is damaged as a whole. No content may cause a traceback, a hang or gigabytes of memory.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from os import SEEK_END
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import from_json

from stoker.rundir.files import lines_backwards, lines_forward
from stoker.spec.bounded import BoundedLoader
from stoker.spec.files import open_regular
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec

Record = dict[str, Any]
T = TypeVar("T")

RECORD_BYTES = 4 << 20  # of a line; runs with thousands of nodes have long ones
TAIL_BLOCK_BYTES = 1 << 20  # read at once
DEPTH = 32
LARGEST = 10**20  # of any integer
LAST_STEP = 10**15
LAST_TIME = 10**11  # seconds since 1970: beyond the year 5000
MOST_WORKERS = 10**6

Count = Annotated[int, Field(ge=0, le=LAST_STEP)]
Workers = Annotated[int, Field(ge=0, le=MOST_WORKERS)]
Seconds = Annotated[float, Field(ge=0, le=LAST_TIME)]
"""Since 1970."""

METRICS = frozenset(
    (
        "loss", "val_loss", "lr", "grad_norm", "loss_scale", "tokens", "tokens_per_second", "samples_per_second",
        "mfu", "memory_gib", "data_wait", "world", "skipped", "epoch",
    )
)  # fmt: skip
"""Fields of a metrics record that are a number or null. Other fields may have any value."""
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}
_MODELS: dict[Any, type[BaseModel]] = {}


class Damaged(ValueError):
    """A file that should hold one record does not."""


def parse_line(line: bytes) -> Record:
    """One object, within the limits. Raises ValueError."""
    record = _parse(line, RECORD_BYTES)
    if type(record) is not dict:
        raise ValueError("it is not an object")
    return record


def parse_metrics(record: Record) -> Record | None:
    """The same record; None when it is not a metrics record."""
    if not _is_count(record.get("step", -1)) or not _is_time(record.get("time", 0)):
        return None
    numbers = (record[name] for name in METRICS & record.keys())
    return record if all(number is None or type(number) in (int, float) for number in numbers) else None


def has_time(record: Record) -> bool:
    return _is_time(record.get("time"))


def read_records(path: Path, parse: Callable[[Record], T | None], skipped: Counter[str] | None = None) -> Iterator[T]:
    """The records of a file, in order, converted by `parse`, which returns None for what is not a record.

    `skipped` gets the number of lines that were not records, under the file's name. An unfinished last line is still
    being written, and does not count.
    """
    wrong = 0
    try:
        with open_regular(path, follow_links=False) as file:
            for line in lines_forward(file, max_bytes=RECORD_BYTES):
                record = _record(line, parse)
                if record is not None:
                    yield record
                else:
                    wrong += _is_wrong(line)
    except FileNotFoundError:
        pass
    except OSError:
        wrong += 1
    if skipped is not None:
        skipped[path.name] = wrong


def records_backwards(
    path: Path, parse: Callable[[Record], T | None], *marks: bytes, skipped: Counter[str] | None = None
) -> Iterator[T]:
    """The records of a file, newest first; with marks, only of lines that contain one of them."""
    wrong = 0
    try:
        with open_regular(path, follow_links=False) as file:
            for line in lines_backwards(file, file.seek(0, SEEK_END), max_bytes=RECORD_BYTES):
                if marks and not any(mark in line for mark in marks):
                    continue
                record = _record(line, parse)
                if record is not None:
                    yield record
                else:
                    wrong += _is_wrong(line)
                    _at_least(skipped, path, wrong)
    except FileNotFoundError:
        pass
    except OSError:
        _at_least(skipped, path, 1)


def parse_lines(
    lines: Iterable[str], parse: Callable[[Record], T | None], skipped: Counter[str], name: str
) -> Iterator[T]:
    """The same for lines that were read elsewhere."""
    skipped[name] = 0
    for line in lines:
        record = _record(line.encode(errors="replace"), parse)
        if record is not None:
            yield record
        else:
            skipped[name] += bool(line.strip())


class Tail:
    """Reads a file while it grows: each call returns the complete records added since the last."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._path = path
        self._position = start
        self.skipped = 0
        """Lines that were not records, or too long for one."""

    def records(self, parse: Callable[[Record], T | None]) -> Iterator[T]:
        """Converted by `parse`, which returns None for what is not a record."""
        for line in self._lines():
            try:
                record = parse(parse_line(line))
            except ValueError:
                record = None
            if record is not None:
                yield record
            else:
                self.skipped += bool(line.strip())

    def _lines(self) -> Iterator[bytes]:
        try:
            with open_regular(self._path, follow_links=False) as file:
                file.seek(self._position)
                yield from self._read(file)
        except FileNotFoundError:
            return

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        """Lines that are too long for a record are skipped."""
        head, too_long = b"", False
        while data := file.read(TAIL_BLOCK_BYTES):
            *lines, head = (head + data).split(b"\n")
            for line in lines:
                self._position += len(line) + 1
                if too_long:
                    self.skipped += 1
                    too_long = False
                else:
                    yield line
            if len(head) > RECORD_BYTES:
                self._position += len(head)
                head, too_long = b"", True

    @classmethod
    def from_now(cls, path: Path) -> "Tail":
        return cls(path, start=path.stat().st_size if path.exists() else 0)


def typed(kind: type[T], data: bytes | str, *, max_bytes: int = RECORD_BYTES) -> T:
    """Parses JSON as a dataclass or another type. Raises Damaged, with the reason in one line."""
    try:
        _parse(data, max_bytes)
        value: T = _adapter(kind).validate_json(data, strict=True)
        return value
    except ValueError as e:
        raise _damaged(e) from e


def typed_fields(kind: type[T], values: Record) -> T:
    """A dataclass from parsed values, each of exactly its field's type. Raises Damaged."""
    if kind not in _MODELS:
        hints = get_type_hints(kind, include_extras=True)
        names = {item.name: (hints[item.name], None) for item in fields(kind)}  # type: ignore[arg-type]
        _MODELS[kind] = create_model(kind.__name__, __config__=ConfigDict(strict=True), **names)  # type: ignore[call-overload]
    try:
        checked = _MODELS[kind].model_validate(values)
    except ValueError as e:
        raise _damaged(e) from e
    return kind(**{name: getattr(checked, name) for name in values})


def typed_value(kind: type[T], value: object) -> T:
    """A value of this type from a part of parsed JSON. Raises Damaged."""
    try:
        checked: T = _adapter(kind).validate_python(value, strict=False)
        return checked
    except ValueError as e:
        raise _damaged(e) from e


def parse_spec(data: bytes) -> AnySpec:
    """spec.yaml. Raises Damaged."""
    try:
        values = yaml.load(data.decode(), BoundedLoader)
        if not isinstance(values, dict):
            raise Damaged("it is not a mapping")
        return ScriptSpec.model_validate(values) if "script" in values else RunSpec.model_validate(values)
    except (ValueError, yaml.YAMLError) as e:
        raise Damaged(str(e)) from e


def skipped_summary(skipped: Mapping[str, int]) -> str:
    """How many records were skipped, such as "3 (2 in events.jsonl, 1 in metrics.jsonl)"; empty when none was."""
    wrong = {name: number for name, number in sorted(skipped.items()) if number}
    parts = ", ".join(f"{number} in {name}" for name, number in wrong.items())
    return f"{sum(wrong.values())} ({parts})" if wrong else ""


def _damaged(error: ValueError) -> Damaged:
    if not isinstance(error, ValidationError):
        return Damaged(str(error))
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return Damaged(f"{where}: {first['msg']}" if where else first["msg"])


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _parse(data: bytes | str, max_bytes: int) -> Any:
    """With pydantic's parser: three times as fast as json's, and it refuses NaN and unpaired surrogates."""
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    value = from_json(data, allow_inf_nan=False)
    if not _is_bounded([value], DEPTH + 1):
        raise ValueError("it is nested too deep, or has a number that is too large")
    return value


def _record(line: bytes, parse: Callable[[Record], T | None]) -> T | None:
    try:
        return parse(parse_line(line))
    except ValueError:
        return None


def _is_wrong(line: bytes) -> bool:
    """A blank line does not count, and an unfinished one may be complete the next time."""
    return len(line) > RECORD_BYTES or (line.endswith(b"\n") and not line.isspace())


def _at_least(skipped: Counter[str] | None, path: Path, wrong: int) -> None:
    """The end of a file is read several times, not always equally far."""
    if skipped is not None:
        skipped[path.name] = max(skipped[path.name], wrong)


def _is_bounded(value: Any, depth: int) -> bool:
    if depth < 0:
        return False
    for item in value.values() if type(value) is dict else value:
        kind = type(item)
        if kind is float:
            if not math.isfinite(item):
                return False
        elif kind is int:
            if not -LARGEST < item < LARGEST:
                return False
        elif (kind is dict or kind is list) and not _is_bounded(item, depth - 1):
            return False
    return True


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= LAST_TIME


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LAST_STEP
