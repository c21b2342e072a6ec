"""The workers' logs: the end of them, one rank or all, and what is added while one looks."""

from collections.abc import Iterator
from pathlib import Path

from stoker.observe.tail import Tail
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

BLOCK = 64 * 1024


def ranks(run: RunDir) -> list[int]:
    """The ranks that have a log."""
    found = (path.stem.removeprefix("rank-") for path in (run.path / contract.LOGS_DIR).glob("rank-*.log"))
    return sorted(int(rank) for rank in found if rank.isdigit())


def last_lines(path: Path, number: int) -> list[str]:
    """Reads from the end, so that a long log costs no more than a short one."""
    try:
        with open(path, "rb") as file:
            position, data = file.seek(0, 2), b""
            while position > 0 and data.count(b"\n") <= number:
                size = min(BLOCK, position)
                position -= size
                file.seek(position)
                data = file.read(size) + data
    except FileNotFoundError:
        return []
    return data.decode(errors="replace").splitlines()[-number:] if number else []


class LogView:
    """The logs of some ranks as one text; with more than one, each line says whose it is."""

    def __init__(self, run: RunDir, *, rank: int | None, tail: int | None) -> None:
        self._run = run
        self._rank = rank
        self._tail = tail
        self._tails: dict[int, Tail] = {}
        if rank is not None and ranks(run) and rank not in ranks(run):
            known = ", ".join(map(str, ranks(run)))
            raise UserError(f"run '{run.name}' has no log of rank {rank}", remedy=f"It has those of {known}")

    def lines(self) -> Iterator[str]:
        """What was added since the last call; the first call gives the last `tail` lines, or all."""
        for rank in ranks(self._run) if self._rank is None else [self._rank]:
            for line in self._new(rank):
                yield f"[{rank}] {line}" if self._rank is None else line

    def _new(self, rank: int) -> list[str]:
        path = self._run.log(rank)
        if rank in self._tails or self._tail is None:
            return self._tails.setdefault(rank, Tail(path)).lines()
        self._tails[rank] = Tail.from_now(path)
        return last_lines(path, self._tail)
