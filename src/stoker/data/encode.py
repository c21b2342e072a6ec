"""One unit of text into one shard of tokens."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
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
from stoker.data.shards import TOKENIZER_FOLDER, Dtype, Shard
from stoker.data.sources.document import BadRecords, Piece
from stoker.data.tokenizer import TOKENIZER_FILE, going_on
from stoker.data.units import Unit, pieces
from stoker.rundir import write_atomic
from stoker.spec.errors import UserError

BATCH = 1 << 20  # characters tokenised by one call
COPY = 1 << 20
UNITS_FOLDER = "units"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What every unit of a prepare has in common."""

    folder: Path
    field: str
    validation: float
    skip_bad: bool
    end: int
    dtype: Dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitRecord:
    """What became of a unit; its file says that the unit is done."""

    documents: int
    bytes: int
    skipped: int
    train: Shard
    validation: Shard


@dataclass(slots=True)
class Advance:
    """Bytes of the data and tokens made since the last one."""

    bytes: int
    tokens: int
    fetched: int = 0
    """Bytes that came from elsewhere."""


def encode(job: Job, unit: Unit) -> Iterator[Advance]:
    """Tokenise a unit, whose files are here, and report as it goes. A kill leaves the unit done or not begun."""
    bad, trace = BadRecords(skip=job.skip_bad), Trace(unit)
    joiner = _Joiner(job, trace)
    size = tokens = reported = 0
    with being_made(job, unit) as (file, partial):
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
def being_made(job: Job, unit: Unit) -> Iterator[tuple[IO[bytes], Path]]:
    """A file for what becomes of a unit, and its path; when it was not moved to its place it is gone afterwards."""
    partial = job.folder / f"{unit.number:05d}.{os.getpid()}.part"  # an orphan of a killed prepare may still be at work
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


def disk_error(folder: Path, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(
            f"there is no room for {folder}: {error.strerror}",
            remedy="Make some room and run it again: it goes on where it stopped",
        )
    return UserError(f"cannot write {folder}: {error.strerror}", remedy="Choose a folder that you may write to")


def _batches(stream: Iterator[tuple[int, Piece]]) -> Iterator[list[tuple[int, Piece]]]:
    batch: list[tuple[int, Piece]] = []
    length = 0
    for part, piece in stream:
        batch.append((part, piece))
        length += len(piece.text)
        if length >= BATCH:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


class _Joiner:
    """Turns pieces into tokens, and ends each document that has any with the end token."""

    def __init__(self, job: Job, trace: Trace) -> None:
        self._tokenizer, self._going_on = _tokenizers(job.folder / TOKENIZER_FOLDER / TOKENIZER_FILE)
        self._end = job.end
        self._dtype = np.dtype(job.dtype).newbyteorder("<")
        self._inside = False
        self._trace = trace
        self.documents = 0

    def tokens(self, batch: list[tuple[int, Piece]]) -> NDArray[Any]:
        ids: list[int] = []
        for (part, piece), found in zip(batch, self._encoded([piece for _, piece in batch]), strict=True):
            before = len(ids)
            ids += found
            self._inside |= bool(piece.text)
            if piece.last and self._inside:
                ids.append(self._end)
                self.documents += 1
                self._inside = False
            self._trace.add(part, characters=len(piece.text), tokens=len(ids) - before)
        return np.fromiter(ids, self._dtype, len(ids))

    def _encoded(self, pieces: list[Piece]) -> list[list[int]]:
        """The fast call gives the same ids without character offsets, in about half the time."""
        if self._going_on is None:
            return [one.ids for one in self._tokenizer.encode_batch_fast(_texts(pieces), add_special_tokens=False)]
        inside = [self._inside, *(not piece.last for piece in pieces)]
        ids: list[list[int]] = [[]] * len(pieces)
        for tokenizer, goes_on in ((self._tokenizer, False), (self._going_on, True)):
            places = [place for place in range(len(pieces)) if inside[place] is goes_on]
            texts = _texts([pieces[place] for place in places])
            for place, one in zip(places, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True):
                ids[place] = one.ids
        return ids


def _texts(pieces: list[Piece]) -> list[str]:
    return [piece.text for piece in pieces]


@lru_cache(1)
def _tokenizers(file: Path) -> tuple[Tokenizer, Tokenizer | None]:
    tokenizer = Tokenizer.from_file(str(file))
    return tokenizer, going_on(tokenizer)


def check_unchanged(unit: Unit) -> None:
    for file, _ in unit.parts:
        if file.url is None and stamp_of(file.path) != file.stamp:
            raise UserError(f"{file.path} changed while it was being prepared", remedy="Run it again")


def move_tail(file: IO[bytes], job: Job, name: str, tokens: int) -> Shard:
    """Cut the last tokens off a file and make a shard of them."""
    partial, left = job.folder / f"{name}.{os.getpid()}.part", tokens * np.dtype(job.dtype).itemsize
    stop = file.seek(-left, os.SEEK_END)
    try:
        with open(partial, "w+b") as tail:
            while left:
                left -= tail.write(file.read(min(left, COPY)))
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
