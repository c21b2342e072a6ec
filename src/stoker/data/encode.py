"""Tokenizes one work unit into one shard."""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from stoker.data.files import stamp_of
from stoker.data.provenance import Trace
from stoker.data.remote import fetch_all, forget
from stoker.data.shards import TOKENIZER_FOLDER, Dtype, Shard
from stoker.data.sources.document import BadRecords, Piece
from stoker.data.tokenizer import TOKENIZER_FILE, continuing
from stoker.data.work_units import Unit, pieces
from stoker.rundir import write_atomic
from stoker.spec.errors import UserError

BATCH_CHARACTERS = 1 << 20  # tokenized by one call
COPY_BYTES = 1 << 20
UNITS_FOLDER = "units"


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeJob:
    """The settings that all units of a prepare share."""

    folder: Path
    field: str
    validation: float
    skip_bad: bool
    end: int
    dtype: Dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitRecord:
    """The result of a unit; its file marks the unit as done."""

    documents: int
    bytes: int
    skipped: int
    train: Shard
    validation: Shard


@dataclass(slots=True)
class Advance:
    """Bytes of data and tokens since the last report."""

    bytes: int
    tokens: int
    fetched: int = 0
    """Bytes downloaded."""


def encode(job: EncodeJob, unit: Unit) -> Iterator[Advance]:
    """Tokenizes a unit, whose files are local, and yields progress. A kill leaves the unit done or not started."""
    bad, trace = BadRecords(skip=job.skip_bad), Trace(unit)
    joiner = _Joiner(job, trace)
    size = tokens = reported = 0
    with partial_file(job, unit) as (file, partial):
        for batch in _batches(pieces(unit, job.field, bad)):
            ids = joiner.tokens(batch)
            file.write(ids.tobytes())
            text = sum(len(piece.text.encode()) for _, piece in batch)
            size, tokens = size + text, tokens + len(ids)
            advance = min(text, unit.size - reported)
            reported += advance
            yield Advance(advance, len(ids))
        check_unchanged(unit)
        held_out = int(tokens * job.validation)
        validation = move_tail(file, job, f"validation-{unit.number:05d}.bin", held_out)
        train = finish(file, partial, job.folder / f"train-{unit.number:05d}.bin", tokens - held_out)
        record = UnitRecord(
            documents=joiner.documents, bytes=size, skipped=bad.skipped, train=train, validation=validation
        )
        trace.write(job.folder, job.field)
        write_atomic(record_path(job.folder, unit), json.dumps(asdict(record)))
        yield Advance(unit.size - reported, 0)


@contextmanager
def partial_file(job: EncodeJob, unit: Unit) -> Iterator[tuple[IO[bytes], Path]]:
    """A temporary file for a unit's tokens, and its path; deleted afterwards unless it was moved."""
    partial = job.folder / f"{unit.number:05d}.{os.getpid()}.part"  # a process of a killed prepare may still be running
    try:
        with open(partial, "w+b") as file:
            yield file, partial
    except UnicodeDecodeError:
        check_unchanged(unit)
        raise
    except OSError as e:
        raise disk_error(job.folder, e) from e
    finally:
        partial.unlink(missing_ok=True)


def record_path(folder: Path, unit: Unit) -> Path:
    return folder / UNITS_FOLDER / f"{unit.number:05d}.json"


def read_record(folder: Path, unit: Unit) -> UnitRecord:
    record = json.loads(record_path(folder, unit).read_text())
    return UnitRecord(**record | {split: Shard(**record[split]) for split in ("train", "validation")})


def with_files(folder: Path, work: Callable[[Unit], Iterator[Advance]], unit: Unit) -> Iterator[Advance]:
    """Does the work of a unit with its remote files on this machine; they are deleted afterwards.

    `folder` is where they are kept, and is named in the error for a full disk.
    """
    files = [file for file, _ in unit.parts]
    try:
        yield from (Advance(0, 0, fetched=size) for size in fetch_all(files))
        yield from work(unit)
        for file in files:
            forget(file)
    except OSError as e:
        raise disk_error(folder, e) from e


def disk_error(folder: Path, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(
            f"the disk is full for {folder}: {error.strerror}",
            remedy="Free some space and run it again: it resumes where it stopped",
        )
    return UserError(f"cannot write {folder}: {error.strerror}", remedy="Choose a folder that you may write to")


def _batches(stream: Iterator[tuple[int, Piece]]) -> Iterator[list[tuple[int, Piece]]]:
    batch: list[tuple[int, Piece]] = []
    length = 0
    for part, piece in stream:
        batch.append((part, piece))
        length += len(piece.text)
        if length >= BATCH_CHARACTERS:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


class _Joiner:
    """Turns pieces into tokens, and adds the end token after each document that has text."""

    def __init__(self, job: EncodeJob, trace: Trace) -> None:
        file = job.folder / TOKENIZER_FOLDER / TOKENIZER_FILE
        self._tokenizer, self._continuing = _tokenizers(file, tuple(stamp_of(file)))
        self._end = job.end
        self._dtype = np.dtype(job.dtype).newbyteorder("<")
        self._inside = False
        self._trace = trace
        self.documents = 0

    def tokens(self, batch: list[tuple[int, Piece]]) -> NDArray[Any]:
        ids: list[int] = []
        for (part, piece), encoded in zip(batch, self._encoded([piece for _, piece in batch]), strict=True):
            before = len(ids)
            ids += encoded
            self._inside |= bool(piece.text)
            if piece.last and self._inside:
                ids.append(self._end)
                self.documents += 1
                self._inside = False
            self._trace.add(part, characters=len(piece.text), tokens=len(ids) - before)
        return np.fromiter(ids, self._dtype, len(ids))

    def _encoded(self, pieces: list[Piece]) -> list[list[int]]:
        """The fast call gives the same ids without character offsets, in about half the time."""
        if self._continuing is None:
            return [
                encoding.ids for encoding in self._tokenizer.encode_batch_fast(_texts(pieces), add_special_tokens=False)
            ]
        inside = [self._inside, *(not piece.last for piece in pieces)]
        ids: list[list[int]] = [[]] * len(pieces)
        for tokenizer, continues in ((self._tokenizer, False), (self._continuing, True)):
            places = [place for place in range(len(pieces)) if inside[place] is continues]
            texts = _texts([pieces[place] for place in places])
            for place, encoding in zip(
                places, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True
            ):
                ids[place] = encoding.ids
        return ids


def _texts(pieces: list[Piece]) -> list[str]:
    return [piece.text for piece in pieces]


@lru_cache(1)
def _tokenizers(file: Path, stamp: tuple[int, ...]) -> tuple[Tokenizer, Tokenizer | None]:  # noqa: ARG001 (a cache key)
    """Loaded once for all units. A prepare of other data in the same folder has another tokenizer there."""
    tokenizer = Tokenizer.from_file(str(file))
    return tokenizer, continuing(tokenizer)


def check_unchanged(unit: Unit) -> None:
    for file, _ in unit.parts:
        if file.url is None and stamp_of(file.path) != file.stamp:
            raise UserError(f"{file.path} changed while it was being prepared", remedy="Run it again")


def move_tail(file: IO[bytes], job: EncodeJob, name: str, tokens: int) -> Shard:
    """Moves the last tokens of a file to a shard of their own."""
    partial, left = job.folder / f"{name}.{os.getpid()}.part", tokens * np.dtype(job.dtype).itemsize
    stop = file.seek(-left, os.SEEK_END)
    try:
        with open(partial, "w+b") as tail:
            while left:
                left -= tail.write(file.read(min(left, COPY_BYTES)))
            shard = finish(tail, partial, job.folder / name, tokens)
    finally:
        partial.unlink(missing_ok=True)
    file.truncate(stop)
    return shard


def finish(file: IO[bytes], partial: Path, final: Path, tokens: int) -> Shard:
    file.flush()
    os.fsync(file.fileno())
    file.seek(0)
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    if tokens:
        partial.replace(final)
    return Shard(file=final.name, tokens=tokens, sha256=sha256)
