"""Where the tokens of a unit came from: one small file per unit, beside the shards.

To locate a token, its source is read up to the nearest mark before it, and only tokenized from that mark on.
"""

import json
from bisect import bisect_right
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stoker.data.files import DataFile
from stoker.data.remote.addresses import shown
from stoker.data.shards import Shard
from stoker.data.sources.document import Span
from stoker.data.work_units import Unit
from stoker.rundir import write_atomic

PROVENANCE_FOLDER = "provenance"
CHARACTERS_PER_MARK = 1 << 16  # about 20 ms of tokenizing, and 16 bytes of JSON

Mark = tuple[int, int]  # pieces of the part, and the tokens made of them


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenancePart:
    """A part of a file in a unit."""

    file: DataFile
    span: Span
    tokens: int
    marks: list[Mark]

    def mark(self, token: int) -> Mark:
        """The last mark at or before a token of the part."""
        at = bisect_right(self.marks, token, key=lambda mark: mark[1])
        return self.marks[at - 1] if at else (0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    field: str
    """The field of a record with the text."""
    parts: list[ProvenancePart]


class Trace:
    """Counts the tokens of each part while a unit is tokenized."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._tokens = [0] * len(unit.parts)
        self._marks: list[list[Mark]] = [[] for _ in unit.parts]
        self._part = self._pieces = self._since = 0

    def add(self, part: int, *, characters: int, tokens: int) -> None:
        """Adds a piece; pieces come in order."""
        if part != self._part:
            self._part, self._pieces, self._since = part, 0, 0
        elif self._since >= CHARACTERS_PER_MARK:
            self._marks[part].append((self._pieces, self._tokens[part]))
            self._since = 0
        self._pieces += 1
        self._since += characters
        self._tokens[part] += tokens

    def write(self, folder: Path, field: str) -> None:
        counted = zip(self._unit.parts, self._tokens, self._marks, strict=True)
        parts = [
            ProvenancePart(file=_without_secrets(file), span=span, tokens=tokens, marks=marks)
            for (file, span), tokens, marks in counted
        ]
        record = asdict(Provenance(field=field, parts=parts))
        write_atomic(_path(folder, f"{self._unit.number:05d}"), json.dumps(record, default=str, separators=(",", ":")))


def read(folder: Path, shard: Shard) -> Provenance | None:
    """The provenance of the unit in a shard; None for a set that was prepared without provenance."""
    try:
        record = json.loads(_path(folder, shard.file.rpartition("-")[2].removesuffix(".bin")).read_text())
    except FileNotFoundError:
        return None
    return Provenance(field=record["field"], parts=[_part(part) for part in record["parts"]])


def _without_secrets(file: DataFile) -> DataFile:
    return replace(file, url=shown(file.url)) if file.url else file


def _part(record: dict[str, Any]) -> ProvenancePart:
    file = record["file"]
    return ProvenancePart(
        file=DataFile(**file | {"path": Path(file["path"])}),
        span=Span(**record["span"]),
        tokens=record["tokens"],
        marks=[(pieces, tokens) for pieces, tokens in record["marks"]],
    )


def _path(folder: Path, number: str) -> Path:
    return folder / PROVENANCE_FOLDER / f"{number}.json"
