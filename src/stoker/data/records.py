"""A unit's records into its shards, so that a kill at any moment leaves the unit done or not begun."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from stoker.data.encode import Job, being_made, check_unchanged, finish, move_tail, record_path
from stoker.data.pairs import FACTS, Numbers, PairIndex, PairShard
from stoker.data.units import Unit
from stoker.rundir import write_atomic
from stoker.spec.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class PairJob(Job):
    length: int
    predictions: int

    @property
    def width(self) -> int:
        return self.length + FACTS + 2 * self.predictions


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """What became of a unit; its file says that the unit is done."""

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
        """The last of the records are held out."""
        check_unchanged(self._unit)
        job, real = self._job, np.concatenate([np.empty(0, np.int64), *self._real])
        held_out = int(len(real) * job.validation)
        train, number = len(real) - held_out, f"{self._unit.number:05d}.bin"
        tail = move_tail(self._file, job, f"validation-{number}", held_out * job.width)
        head = finish(self._file, self._partial, job.folder / f"train-{number}", train * job.width)
        made = Made(
            documents=documents,
            bytes=bytes,
            skipped=skipped,
            train=PairShard(file=head.file, records=train, tokens=int(real[:train].sum()), sha256=head.sha256),
            validation=PairShard(file=tail.file, records=held_out, tokens=int(real[train:].sum()), sha256=tail.sha256),
        )
        write_atomic(record_path(job.folder, self._unit), json.dumps(asdict(made)))


@contextmanager
def records(job: PairJob, unit: Unit) -> Iterator[Records]:
    with being_made(job, unit) as (file, partial):
        yield Records(job, unit, file, partial)


def pair_index(job: PairJob, units: list[Unit], *, key: str, vocab: int, trained: int | None) -> PairIndex:
    """Of all that was made; it is not written yet."""
    made = [_read(job.folder, unit) for unit in units]
    if not any(one.train.records for one in made):
        raise UserError("the data has no pair of sentences", remedy="Check data.path and data.field, or give more text")
    return PairIndex(
        key=key,
        dtype=job.dtype,
        vocab=vocab,
        end=job.end,
        tokenizer="",
        trained=trained,
        documents=sum(one.documents for one in made),
        bytes=sum(one.bytes for one in made),
        skipped=sum(one.skipped for one in made),
        length=job.length,
        predictions=job.predictions,
        train=[one.train for one in made if one.train.records],
        validation=[one.validation for one in made if one.validation.records],
    )


def _read(folder: Path, unit: Unit) -> Made:
    record = json.loads(record_path(folder, unit).read_text())
    return Made(**record | {split: PairShard(**record[split]) for split in ("train", "validation")})
