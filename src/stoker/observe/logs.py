"""The workers' logs: one rank or all in the order of their time, the end of them, and what is added while one looks.

The supervisor writes the time before each line and moves a long log aside: rank-0.log.1 is older than rank-0.log, .2
older than that. Lines without a time are those of an older supervisor, or of none.
"""

import heapq
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from stoker.rundir import RunDir
from stoker.rundir.files import LINE_BYTES, lines_backwards, open_regular
from stoker.rundir.records import Count, Seconds
from stoker.spec.errors import UserError

STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ")
ASIDE = ("", ".1", ".2", ".3")  # newest first


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    time: Seconds | None
    """When it was printed, in seconds since 1970; None when the log does not say."""
    rank: Count
    line: str


def ranks(run: RunDir) -> list[int]:
    """The ranks that have a log, and those that were started and have printed nothing."""
    found = (path.stem.removeprefix("rank-") for path in run.logs.glob("rank-*.log"))
    world = next(run.events_backwards(b'"kind": "world"'), {})
    return sorted(
        {int(rank) for rank in found if re.fullmatch(r"[0-9]{1,9}", rank)} | set(range(world.get("workers", 0)))
    )


def last_lines(path: Path, number: int) -> list[str]:
    """Reads from the end, so that a long log costs no more than a short one."""
    return [line.line for _, line in _Log(path, rank=0, tail=number, since=None).lines(ended=True)]


class LogView:
    """The logs of some ranks as one text; with more than one, each line says whose it is."""

    def __init__(self, run: RunDir, *, rank: int | None, tail: int | None, since: float | None = None) -> None:
        self._run = run
        self._rank = rank
        self._tail = tail
        self._since = since
        self._logs: dict[int, _Log] = {}
        if rank is not None and ranks(run) and rank not in ranks(run):
            known = ", ".join(map(str, ranks(run)))
            raise UserError(f"run '{run.name}' has no log of rank {rank}", remedy=f"It has those of {known}")

    def lines(self, *, ended: bool = True) -> Iterator[str]:
        """As `records`, in words."""
        return map(self.words, self.records(ended=ended))

    def words(self, one: LogLine) -> str:
        return f"[{one.rank}] {one.line}" if self._rank is None else one.line

    def records(self, *, ended: bool = True) -> Iterator[LogLine]:
        """What was added since the last call; the first gives all since `since`, or the last `tail` lines of each.

        A last line without an end is left for the next call, unless nobody will end it.
        """
        news = [
            self._log(rank).lines(ended=ended) for rank in (ranks(self._run) if self._rank is None else [self._rank])
        ]
        for _, line in heapq.merge(*news, key=itemgetter(0)):
            yield line

    def _log(self, rank: int) -> "_Log":
        if rank not in self._logs:
            self._logs[rank] = _Log(self._run.log(rank), rank=rank, tail=self._tail, since=self._since)
        return self._logs[rank]


class _Log:
    """The log of one rank, across the files that were moved aside."""

    def __init__(self, path: Path, *, rank: int, tail: int | None, since: float | None) -> None:
        self._path = path
        self._rank = rank
        self._tail = tail
        self._since = since
        self._file: BinaryIO | None = None
        self._time = 0.0

    def lines(self, *, ended: bool) -> Iterator[tuple[float, LogLine]]:
        """Each with the time that orders it: a line without has that of the one before it."""
        news = self._further(ended) if self._tail is None else self._from_the_end(self._tail, ended)
        self._tail = None  # from the second look on all that is new counts
        for raw in news:
            time, text = _parted(raw)
            self._time = time or self._time
            if self._since is not None and self._time < self._since:
                continue
            yield self._time, LogLine(time=time, rank=self._rank, line=text.decode(errors="replace"))

    def _from_the_end(self, number: int, ended: bool) -> list[bytes]:
        files = _open(self._path)
        if not files:
            return []
        self._file = files[-1]
        stands = size = os.fstat(self._file.fileno()).st_size
        found: list[bytes] = []
        for file in reversed(files):
            for raw in lines_backwards(file, size if file is self._file else os.fstat(file.fileno()).st_size):
                if file is self._file and not raw.endswith(b"\n") and not ended:
                    stands -= len(raw)
                    continue
                if len(found) == number:
                    break
                found.append(raw)
            if len(found) == number:
                break
        self._file.seek(stands)
        return found[::-1]

    def _further(self, ended: bool) -> Iterator[bytes]:
        for file in self._files():
            while raw := file.readline(LINE_BYTES):  # a longer line is shown in parts
                if not raw.endswith(b"\n") and len(raw) < LINE_BYTES and not ended:
                    file.seek(-len(raw), os.SEEK_CUR)
                    break
                yield raw

    def _files(self) -> Iterator[BinaryIO]:
        """What is left of the file at hand, then those that took its place."""
        later: list[BinaryIO] = []
        if self._file is None:
            later = _since(_open(self._path), self._since)
        else:
            yield self._file
            if _inode(self._file) != _inode(self._path):
                files = _open(self._path)
                known = [_inode(file) for file in files]
                mine = _inode(self._file)
                later = files[known.index(mine) + 1 :] if mine in known else files
                yield self._file  # what was written before it was moved
        for file in later:
            self._file = file
            yield file


def _parted(raw: bytes) -> tuple[float | None, bytes]:
    """When a line was printed, and what."""
    text = raw.removesuffix(b"\n").removesuffix(b"\r")
    if stamp := STAMP.match(raw):
        with suppress(ValueError):  # month 13: it is no stamp of ours
            return datetime.fromisoformat(stamp[1].decode()).timestamp(), text[stamp.end() :]
    return None, text


def _open(path: Path) -> list[BinaryIO]:
    """The files of a log, oldest first. Opened newest first: one that is moved meanwhile is met twice, never missed."""
    found: dict[int, BinaryIO] = {}
    for name in ASIDE:
        try:
            file = open_regular(path.with_name(path.name + name), root=path.parents[1])
        except FileNotFoundError:
            continue
        found.setdefault(_inode(file), file)
    return list(found.values())[::-1]


def _since(files: list[BinaryIO], since: float | None) -> list[BinaryIO]:
    """Without those that were written to for the last time before then."""
    return files if since is None else [file for file in files if os.fstat(file.fileno()).st_mtime >= since]


def _inode(file: BinaryIO | Path) -> int:
    try:
        return (os.lstat(file) if isinstance(file, Path) else os.fstat(file.fileno())).st_ino
    except FileNotFoundError:
        return 0  # being moved right now
