"""Writes a unit's records to its shards; a kill at any moment leaves the unit done or not started."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from stoker.data.bert.pairs import Numbers, PairIndex, PairShard, record_width
from stoker.data.encode import EncodeJob, check_unchanged, finish, move_tail, partial_file, record_path
from stoker.data.work_units import Unit
from stoker.rundir import write_atomic
from stoker.spec.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class PairJob(EncodeJob):
    length: int
    predictions: int

    @property
    def width(self) -> int:
        return record_width(self.length, self.predictions)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRecord:
    """The result of a unit; its file marks the unit as done."""

    documents: int
    bytes: int
    skipped: int
    train: PairShard
    validation: PairShard


class Records:
    def __init__(self, job: PairJob, unit: Unit, file: IO[bytes], partial: Path) -> None:
        self._job, self._unit, self._file, self._partial = job, unit, file, partial
        self._real: list[Numbers] = []

    def add(self, rows: Numbers) -> None:
        self._file.write(rows.astype(np.dtype(self._job.dtype).newbyteorder("<")).tobytes())
        self._real.append(rows[:, self._job.length].copy())

    def finish(self, *, documents: int, bytes: int, skipped: int) -> None:
        """The last records become the validation split."""
        check_unchanged(self._unit)
        job, real = self._job, np.concatenate([np.empty(0, np.int64), *self._real])
        held_out = int(len(real) * job.validation)
        train, number = len(real) - held_out, f"{self._unit.number:05d}.bin"
        tail = move_tail(self._file, job, f"validation-{number}", held_out * job.width)
        head = finish(self._file, self._partial, job.folder / f"train-{number}", train * job.width)
        made = PairRecord(
            documents=documents,
            bytes=bytes,
            skipped=skipped,
            train=PairShard(file=head.file, records=train, tokens=int(real[:train].sum()), sha256=head.sha256),
            validation=PairShard(file=tail.file, records=held_out, tokens=int(real[train:].sum()), sha256=tail.sha256),
        )
        write_atomic(record_path(job.folder, self._unit), json.dumps(asdict(made)))


@contextmanager
def records(job: PairJob, unit: Unit) -> Iterator[Records]:
    with partial_file(job, unit) as (file, partial):
        yield Records(job, unit, file, partial)


def pair_index(job: PairJob, units: list[Unit], *, key: str, vocab: int, trained: int | None) -> PairIndex:
    """The index of all units, not written yet."""
    records = [_read(job.folder, unit) for unit in units]
    if not any(record.train.records for record in records):
        raise UserError("the data has no pair of sentences", remedy="Check data.path and data.field, or add more text")
    return PairIndex(
        key=key,
        dtype=job.dtype,
        vocab=vocab,
        end=job.end,
        tokenizer="",
        trained=trained,
        documents=sum(record.documents for record in records),
        bytes=sum(record.bytes for record in records),
        skipped=sum(record.skipped for record in records),
        length=job.length,
        predictions=job.predictions,
        train=[record.train for record in records if record.train.records],
        validation=[record.validation for record in records if record.validation.records],
    )


def _read(folder: Path, unit: Unit) -> PairRecord:
    record = json.loads(record_path(folder, unit).read_text())
    return PairRecord(**record | {split: PairShard(**record[split]) for split in ("train", "validation")})
