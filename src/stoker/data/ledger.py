"""The ledger: which samples each rank gave the model at each step, and a hash of the very tokens.

One file for each attempt and rank: a header line (attempt, rank, world, and start, the step it resumed from), then a
line for each step. An attempt that starts at step s replaces all that earlier attempts did after s.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from stoker.rundir import read_lines


class Ledger:
    """Written by one rank while it trains. A killed process loses nothing that `record` was given."""

    def __init__(self, folder: Path, *, attempt: int, rank: int, world: int, start: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / f"attempt-{attempt:04d}-rank-{rank:04d}.jsonl", "w", encoding="utf-8")  # noqa: SIM115
        self._write({"attempt": attempt, "rank": rank, "world": world, "start": start})

    def record(self, step: int, samples: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        """`tokens` are the rows the model is given, [n, length + 1], in the order of `samples`."""
        self._write({"step": step, "samples": samples.tolist(), "hash": token_hash(tokens)})

    def sync(self) -> None:
        """After this a power cut loses nothing either; a checkpoint counts only then."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, record: dict[str, object]) -> None:
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()


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

    def steps(self, rank: int) -> Iterator[LedgerStep]:
        """What a rank recorded, in order, read as it is asked for; a line torn by a kill is passed over."""
        yield from filter(None, map(_parsed, self._lines(rank)))

    def at(self, rank: int, step: int) -> LedgerStep | None:
        """One step of a rank, found without parsing the others."""
        begins = f'{{"step":{step},'
        for line in self._lines(rank):
            if line.startswith(begins):
                return _parsed(line)
        return None

    def _lines(self, rank: int) -> Iterator[str]:
        if rank in self.files:
            with open(self.files[rank], encoding="utf-8") as file:
                yield from file


def _parsed(line: str) -> LedgerStep | None:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    if "step" not in record:
        return None
    return LedgerStep(step=record["step"], samples=np.array(record["samples"], dtype=np.int64), hash=record["hash"])


def token_hash(tokens: NDArray[np.int64]) -> str:
    rows = np.ascontiguousarray(tokens, dtype="<i8")
    return hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()


def read(folder: Path) -> list[AttemptLedger]:
    """The attempts in order. One whose ranks died before they wrote a header did nothing, and is left out."""
    attempts: dict[int, AttemptLedger] = {}
    for attempt, rank, path in _files(folder):
        header = next(read_lines(path), None)
        if header is None or "world" not in header:
            continue
        ledger = attempts.setdefault(
            attempt, AttemptLedger(attempt=attempt, world=header["world"], start=header["start"], files={})
        )
        if (header["world"], header["start"]) != (ledger.world, ledger.start):
            raise ValueError(
                f"{path.name} says world {header['world']}, start {header['start']}, unlike its other ranks"
            )
        ledger.files[rank] = path
    return [attempts[attempt] for attempt in sorted(attempts)]


def _files(folder: Path) -> list[tuple[int, int, Path]]:
    found = []
    for path in sorted(folder.glob("attempt-*-rank-*.jsonl")):
        if name := re.fullmatch(r"attempt-(\d+)-rank-(\d+)\.jsonl", path.name):
            found.append((int(name[1]), int(name[2]), path))
    return found
