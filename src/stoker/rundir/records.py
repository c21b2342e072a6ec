"""The records of a run directory, parsed in one place: typed, and bounded in size, depth and numbers.

A line of metrics.jsonl or events.jsonl that is not a record is skipped and counted; a file that is one record
(exit.json, data.json …) is damaged as a whole. Nothing in a run directory may end in a traceback, a hang or gigabytes.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import SEEK_END
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from stoker.rundir.files import lines_backwards, lines_forward, open_regular
from stoker.spec.bounded_yaml import BoundedLoader
from stoker.spec.run import AnySpec, RunSpec, ScriptSpec

Record = dict[str, Any]
Check = Callable[[Record], bool]
T = TypeVar("T")

RECORD_BYTES = 4 << 20  # of a line; the longest are those of a run over thousands of nodes
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
"""Of a metrics record, what is a number or null. Other names may hold what they like."""
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


class Damaged(ValueError):
    """A file that should hold one record does not."""


def parse_line(line: bytes) -> Record:
    """One object, within the limits. Raises ValueError."""
    record = _parse(line, RECORD_BYTES)
    if type(record) is not dict:
        raise ValueError("it is not an object")
    return record


def is_metrics(record: Record) -> bool:
    if not _is_count(record.get("step", -1)) or not _is_time(record.get("time", 0)):
        return False
    return all(record[name] is None or type(record[name]) in (int, float) for name in METRICS & record.keys())


def is_event(record: Record) -> bool:
    """It has a time and a kind, and no field that readers compute with is of another type."""
    head = _is_time(record.get("time")) and type(record.get("kind")) is str
    return head and all(_FIELDS[name](record[name]) for name in _FIELDS.keys() & record.keys())


def read_records(path: Path, check: Check, skipped: Counter[str] | None = None) -> Iterator[Record]:
    """The records of a file, in order. How many lines were none is set in `skipped` under the file's name.

    A last line without its newline is still being written, and counts as nothing.
    """
    wrong = 0
    try:
        with open_regular(path) as file:
            for line in lines_forward(file, max_bytes=RECORD_BYTES):
                record = _record(line, check)
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


def records_backwards(path: Path, check: Check, *marks: bytes, skipped: Counter[str] | None = None) -> Iterator[Record]:
    """The records of a file, newest first; with marks, those of the lines that hold one of them."""
    wrong = 0
    try:
        with open_regular(path) as file:
            for line in lines_backwards(file, file.seek(0, SEEK_END), max_bytes=RECORD_BYTES):
                if marks and not any(mark in line for mark in marks):
                    continue
                record = _record(line, check)
                if record is not None:
                    yield record
                else:
                    wrong += _is_wrong(line)
                    _at_least(skipped, path, wrong)
    except FileNotFoundError:
        pass
    except OSError:
        _at_least(skipped, path, 1)


def parse_lines(lines: Iterable[str], check: Check, skipped: Counter[str], name: str) -> Iterator[Record]:
    """The same of lines that somebody else has read."""
    skipped[name] = 0
    for line in lines:
        record = _record(line.encode(errors="replace"), check)
        if record is not None:
            yield record
        else:
            skipped[name] += bool(line.strip())


def typed(kind: type[T], data: bytes | str, *, max_bytes: int = RECORD_BYTES) -> T:
    """What JSON says, as a dataclass or another type. Raises Damaged, with the reason in one line."""
    try:
        _parse(data, max_bytes)
        value: T = _adapter(kind).validate_json(data, strict=True)
        return value
    except ValueError as e:
        raise _damaged(e) from e


def typed_value(kind: type[T], value: object) -> T:
    """The same of a part of what was parsed already."""
    try:
        found: T = _adapter(kind).validate_python(value, strict=False)
        return found
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


def in_words(skipped: Mapping[str, int]) -> str:
    """Which records were skipped, such as "3 (2 in events.jsonl, 1 in metrics.jsonl)"; empty when none was."""
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
    """pydantic's parser takes a third of the time of json's, and refuses what is not JSON: NaN, half a character."""
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    value = from_json(data, allow_inf_nan=False)
    if not _is_bounded([value], DEPTH + 1):
        raise ValueError("it is nested too deep, or has a number that is too large")
    return value


def _record(line: bytes, check: Check) -> Record | None:
    try:
        record = parse_line(line)
    except ValueError:
        return None
    return record if check(record) else None


def _is_wrong(line: bytes) -> bool:
    """A blank line is nothing, and one without an end may be whole the next time."""
    return len(line) > RECORD_BYTES or (line.endswith(b"\n") and not line.isspace())


def _at_least(skipped: Counter[str] | None, path: Path, wrong: int) -> None:
    """The end of a file is read more than once, and not always as far."""
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


def _is_optional_count(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_workers(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_WORKERS


def _is_text(value: Any) -> bool:
    return value is None or type(value) is str


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_list(value: Any) -> bool:
    return type(value) is list


def _is_nodes(value: Any) -> bool:
    """As they are (`world`), or how many there are to be (`scaled`)."""
    return type(value) is str or (type(value) is list and all(type(node) is dict for node in value))


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "again": _is_flag,
    "changes": lambda value: type(value) is dict,
    "nodes": _is_nodes,
    "parameters": _is_number,
    "rank": _is_optional_count,
    "seconds": _is_number,
    "steps": _is_optional_count,
    "workers": _is_workers,
    "world": _is_workers,
    **dict.fromkeys(("attempt", "least", "most", "node", "restart", "step", "times", "tokens_per_step"), _is_count),
    **dict.fromkeys(("here", "missing"), _is_list),
    **dict.fromkeys(("chip", "host", "line", "object", "pod", "reason", "signal", "text"), _is_text),
}
"""Of an event, the fields that readers compute with. An event of any kind may have others."""
