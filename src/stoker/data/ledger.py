"""The ledger: which samples each rank gave the model at each step, and a hash of the tokens.

One file for each attempt and rank: a header line (attempt, rank, world, and start, the step it resumed from), then a
line for each step. An attempt that starts at step s replaces everything that earlier attempts did after s.

A checkpoint holds a digest of the ledger of each attempt that led to it: a ledger that was cut short or changed after a
save no longer matches its checkpoint.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from stoker.rundir.files import lines_backwards, lines_forward
from stoker.rundir.records import RECORD_BYTES, Count, Record, Workers, parse_line, typed
from stoker.spec.files import open_regular

STEP = re.compile(rb'\{"step":([0-9]{1,15}),')


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """The ledger of a rank, or of all ranks of an attempt, up to a step."""

    bytes: int
    sha256: str


class Ledger:
    """Written by one rank while it trains. A kill loses nothing that was recorded."""

    def __init__(self, folder: Path, *, attempt: int, rank: int, world: int, start: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / f"attempt-{attempt:04d}-rank-{rank:04d}.jsonl", "wb", buffering=0)  # noqa: SIM115
        self._bytes, self._digest = 0, hashlib.sha256()
        self._write({"attempt": attempt, "rank": rank, "world": world, "start": start})

    def record(self, step: int, samples: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        """`tokens`: the model's input rows, [n, length + 1], in the order of `samples`."""
        self._write({"step": step, "samples": samples.tolist(), "hash": token_hash(tokens)})

    def mark(self) -> Mark:
        """A mark for everything recorded so far."""
        return Mark(bytes=self._bytes, sha256=self._digest.hexdigest())

    def sync(self) -> None:
        """Syncs to disk, before a checkpoint becomes valid: the ledger then survives a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, record: dict[str, object]) -> None:
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        left = memoryview(line)
        while left:
            left = left[self._file.write(left) :]
        self._bytes += len(line)
        self._digest.update(line)


def attempt_name(attempt: int) -> str:
    """The name in a manifest."""
    return f"attempt-{attempt:04d}"


def combined(ranks: Iterable[Mark]) -> Mark:
    """The mark of an attempt, from its ranks in order."""
    marks = list(ranks)
    digest = hashlib.sha256("".join(mark.sha256 for mark in marks).encode())
    return Mark(bytes=sum(mark.bytes for mark in marks), sha256=digest.hexdigest())


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerStep:
    step: int
    samples: NDArray[np.int64]
    hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptLedger:
    attempt: int
    world: int
    start: int
    files: dict[int, Path]
    """The file of each rank that wrote one."""

    def steps(self, rank: int) -> Iterator[LedgerStep | None]:
        """The records of a rank in order, read lazily; None for a complete line that is not a record."""
        lines = self._lines(rank)
        next(lines, None)  # the header
        for line in lines:
            record = _parsed(line)
            if record is not None or line.endswith(b"\n"):
                yield record

    def at(self, rank: int, step: int) -> LedgerStep | None:
        """One step of a rank, without parsing the other steps."""
        begins = b'{"step":%d,' % step
        for line in self._lines(rank):
            if line.startswith(begins):
                return _parsed(line)
        return None

    def last(self) -> int:
        """The last step that all ranks recorded, or else the step that the attempt started from."""
        if len(self.files) < self.world:
            return self.start
        return min(self._last(path) for path in self.files.values())

    def mark(self, stop: int) -> Mark:
        """The mark of all ranks, up to and including step `stop`."""
        return combined(self._mark(rank, stop) for rank in sorted(self.files))

    def _mark(self, rank: int, stop: int) -> Mark:
        digest, size = hashlib.sha256(), 0
        for line in self._lines(rank):
            if (match := STEP.match(line)) and int(match[1]) > stop:
                break
            digest.update(line)
            size += len(line)
        return Mark(bytes=size, sha256=digest.hexdigest())

    def _last(self, path: Path) -> int:
        with open_regular(path, root=path.parents[1], follow_links=False) as file:
            for line in lines_backwards(file, file.seek(0, os.SEEK_END), max_bytes=RECORD_BYTES):
                if record := _parsed(line):
                    return record.step
        return self.start

    def _lines(self, rank: int) -> Iterator[bytes]:
        if rank in self.files:
            path = self.files[rank]
            with open_regular(path, root=path.parents[1], follow_links=False) as file:
                yield from lines_forward(file, max_bytes=RECORD_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class _LedgerHeader:
    world: Workers
    start: Count


def _parsed(line: bytes) -> LedgerStep | None:
    try:
        return _step(parse_line(line))
    except (ValueError, KeyError, OverflowError):
        return None  # cut off by a kill, or not written by a trainer


def _step(record: Record) -> LedgerStep:
    step, hash, samples = record["step"], record["hash"], record["samples"]
    if type(step) is not int or type(hash) is not str or type(samples) is not list:
        raise ValueError("not a step")
    ids = np.array(samples) if samples else np.empty(0, np.int64)
    if ids.ndim != 1 or ids.dtype != np.int64:
        raise ValueError("not samples")
    return LedgerStep(step=step, samples=ids, hash=hash)


def token_hash(tokens: NDArray[np.int64]) -> str:
    rows = np.ascontiguousarray(tokens, dtype="<i8")
    return hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()


def read(folder: Path) -> list[AttemptLedger]:
    """The attempts in order, without those whose ranks died before they wrote a header.

    Raises ValueError if the files contradict each other, or a file is not a ledger.
    """
    attempts: dict[int, AttemptLedger] = {}
    for attempt, rank, path in _files(folder):
        with open_regular(path, root=folder.parent, follow_links=False) as file:
            line = file.readline(RECORD_BYTES + 1)
        if not line.endswith(b"\n"):
            continue
        try:
            header = typed(_LedgerHeader, line)
        except ValueError as e:
            raise ValueError(f"{path.name} has no header: {e}") from e
        ledger = attempts.setdefault(
            attempt, AttemptLedger(attempt=attempt, world=header.world, start=header.start, files={})
        )
        if (header.world, header.start) != (ledger.world, ledger.start):
            raise ValueError(f"{path.name} says world {header.world}, start {header.start}, unlike its other ranks")
        ledger.files[rank] = path
    return [attempts[attempt] for attempt in sorted(attempts)]


def _files(folder: Path) -> list[tuple[int, int, Path]]:
    files = []
    for path in sorted(folder.glob("attempt-*-rank-*.jsonl")):
        if name := re.fullmatch(r"attempt-([0-9]{1,9})-rank-([0-9]{1,9})\.jsonl", path.name):
            files.append((int(name[1]), int(name[2]), path))
    return files
