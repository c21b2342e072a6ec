"""The workers' logs: of one rank, or of all merged by time; from the end, and while they grow.

The supervisor writes the time before each line and rotates long logs: rank-0.log.1 is older than rank-0.log, and .2
older than .1. Lines without a time come from an older supervisor, or from none.
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

from stoker.rundir.directory import RunDir
from stoker.rundir.events import World
from stoker.rundir.files import MAX_LINE_BYTES, lines_backwards
from stoker.rundir.records import Count, Seconds
from stoker.spec.errors import UserError
from stoker.spec.files import open_regular

STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ")
MAX_RANKS_SHOWN = 16
ROTATIONS = ("", ".1", ".2", ".3")  # newest first


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    time: Seconds | None
    """When it was printed, in seconds since 1970; None when the log has no time."""
    rank: Count
    line: str


def ranks(run: RunDir) -> list[int]:
    """The ranks that have a log, and those that were started and have not printed anything."""
    ranks = (path.stem.removeprefix("rank-") for path in run.logs.glob("rank-*.log"))
    world = next((event for event in run.events_backwards(World) if isinstance(event, World)), None)
    started = set(range(world.workers)) if world else set()
    return sorted({int(rank) for rank in ranks if re.fullmatch(r"[0-9]{1,9}", rank)} | started)


def last_lines(path: Path, number: int) -> list[str]:
    """Reads from the end: a long log takes no more time than a short one."""
    return [line.line for _, line in _Log(path, rank=0, tail=number, since=None).lines(ended=True)]


class LogView:
    """The log of one rank, or of all ranks as one text, where each line has its rank."""

    def __init__(self, run: RunDir, *, rank: int | None, tail: int | None, since: float | None = None) -> None:
        self._run = run
        self._rank = rank
        self._tail = tail
        self._since = since
        self._logs: dict[int, _Log] = {}
        if rank is not None and (known := ranks(run)) and rank not in known:
            shown = ", ".join(map(str, known[:MAX_RANKS_SHOWN]))
            shown += f", … {known[-1]}" if len(known) > MAX_RANKS_SHOWN else ""
            raise UserError(f"run '{run.name}' has no log of rank {rank}", remedy=f"It has logs of ranks {shown}")

    def lines(self, *, ended: bool = True) -> Iterator[str]:
        """As `records`, as text."""
        return map(self.text, self.records(ended=ended))

    def text(self, line: LogLine) -> str:
        return f"[{line.rank}] {line.line}" if self._rank is None else line.line

    def records(self, *, ended: bool = True) -> Iterator[LogLine]:
        """The lines added since the last call; at first, all since `since`, or the last `tail` of each rank.

        An unfinished last line is left for the next call, unless `ended`.
        """
        shown = ranks(self._run) if self._rank is None else [self._rank]
        logs = [self._log(rank).lines(ended=ended) for rank in shown]
        for _, line in heapq.merge(*logs, key=itemgetter(0)):
            yield line

    def _log(self, rank: int) -> "_Log":
        if rank not in self._logs:
            self._logs[rank] = _Log(self._run.log(rank), rank=rank, tail=self._tail, since=self._since)
        return self._logs[rank]


class _Log:
    """The log of one rank, across rotated files."""

    def __init__(self, path: Path, *, rank: int, tail: int | None, since: float | None) -> None:
        self._path = path
        self._rank = rank
        self._tail = tail
        self._since = since
        self._file: BinaryIO | None = None
        self._time = 0.0

    def lines(self, *, ended: bool) -> Iterator[tuple[float, LogLine]]:
        """Each with the time that it is sorted by: that of the line before, for a line without a time."""
        raw_lines = self._new_lines(ended) if self._tail is None else self._last_lines(self._tail, ended)
        self._tail = None  # later calls return everything new
        for raw in raw_lines:
            time, text = _split(raw)
            self._time = time or self._time
            if self._since is not None and self._time < self._since:
                continue
            yield self._time, LogLine(time=time, rank=self._rank, line=text.decode(errors="replace"))

    def _last_lines(self, number: int, ended: bool) -> list[bytes]:
        files = _open(self._path)
        if not files:
            return []
        self._file = files[-1]
        position = size = os.fstat(self._file.fileno()).st_size
        lines: list[bytes] = []
        for file in reversed(files):
            for raw in lines_backwards(file, size if file is self._file else os.fstat(file.fileno()).st_size):
                if file is self._file and not raw.endswith(b"\n") and not ended:
                    position -= len(raw)
                    continue
                if len(lines) == number:
                    break
                lines.append(raw)
            if len(lines) == number:
                break
        self._file.seek(position)
        return lines[::-1]

    def _new_lines(self, ended: bool) -> Iterator[bytes]:
        for file in self._files():
            while raw := file.readline(MAX_LINE_BYTES):  # a longer line is shown in parts
                if not raw.endswith(b"\n") and len(raw) < MAX_LINE_BYTES and not ended:
                    file.seek(-len(raw), os.SEEK_CUR)
                    break
                yield raw

    def _files(self) -> Iterator[BinaryIO]:
        """The rest of the current file, then the files that replaced it."""
        later: list[BinaryIO] = []
        if self._file is None:
            later = _since(_open(self._path), self._since)
        else:
            yield self._file
            if _inode(self._file) != _inode(self._path):
                files = _open(self._path)
                known = [_inode(file) for file in files]
                inode = _inode(self._file)
                later = files[known.index(inode) + 1 :] if inode in known else files
                yield self._file  # what was written before the rotation
        for file in later:
            self._file = file
            yield file


def _split(raw: bytes) -> tuple[float | None, bytes]:
    """Splits a line into its time and its text."""
    text = raw.removesuffix(b"\n").removesuffix(b"\r")
    if stamp := STAMP.match(raw):
        with suppress(ValueError):  # month 13: not one of our time stamps
            return datetime.fromisoformat(stamp[1].decode()).timestamp(), text[stamp.end() :]
    return None, text


def _open(path: Path) -> list[BinaryIO]:
    """The files of a log, oldest first. Opened newest first: a file rotated meanwhile is seen twice, never missed."""
    files_by_inode: dict[int, BinaryIO] = {}
    for name in ROTATIONS:
        try:
            file = open_regular(path.with_name(path.name + name), root=path.parents[1], follow_links=False)
        except FileNotFoundError:
            continue
        files_by_inode.setdefault(_inode(file), file)
    return list(files_by_inode.values())[::-1]


def _since(files: list[BinaryIO], since: float | None) -> list[BinaryIO]:
    """Without the files that were last written before `since`."""
    return files if since is None else [file for file in files if os.fstat(file.fileno()).st_mtime >= since]


def _inode(file: BinaryIO | Path) -> int:
    try:
        return (os.lstat(file) if isinstance(file, Path) else os.fstat(file.fileno())).st_ino
    except FileNotFoundError:
        return 0  # being rotated
