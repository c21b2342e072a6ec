"""torch's own agent in the place of a node's workers: the agents of all nodes agree on the ranks through etcd."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from stoker.rundir import RunDir
from stoker.rundir.log_errors import error_in
from stoker.supervise.crew import Crew, Death, death
from stoker.supervise.logfile import LogFile
from stoker.supervise.pump import Pump

MARK = "STOKER_AGENT"
PREFIX = re.compile(rb"\[(\d{1,6})\] ")
LOOK = "0.1"  # seconds between two looks of the agent at its workers
RANKED = re.compile(r"^\[(\d{1,6})\] ", re.MULTILINE)
# As torch writes them at the end of what it prints when a worker has failed.
CAUSE = re.compile(r"^Root Cause .*?^ +rank +: (\d+) .*?^ +exitcode +: (-?\d+) ", re.MULTILINE | re.DOTALL)


def command(
    words: Sequence[str], *, endpoint: str, id: str, nodes: int, workers: int, address: str, scratch: str
) -> list[str]:
    """It starts them once: whether they are started again is decided by the supervisors, for all nodes alike."""
    options = {
        "rdzv-backend": "etcd",
        "rdzv-endpoint": endpoint,
        "rdzv-id": id,
        "nnodes": str(nodes),
        "nproc-per-node": str(workers),
        "local-addr": address,
        "max-restarts": "0",
        "monitor-interval": LOOK,
        "tee": "3",
        "log-dir": scratch,
    }
    given = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-P", "-m", "torch.distributed.run", *given, "--no-python", *words]


def environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Of the agent; what a worker gets beyond it is torch's affair. The mark is how its processes are known."""
    return {
        "OMP_NUM_THREADS": "1",
        **base,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **extra,
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}] ",
        MARK: uuid.uuid4().hex,
    }


class RankLogs:
    """What an agent prints: a worker's lines, which begin with its rank, go to its log, the agent's own to its own."""

    def __init__(self, run: RunDir, *, node: int, note: Callable[[str], None], hear: Callable[[bytes], None]) -> None:
        self._run, self._note, self._hear = run, note, hear
        self._own = LogFile(run.logs / f"agent-{node}.log", note=note)
        self._workers: dict[int, LogFile] = {}

    def write(self, lines: bytes) -> None:
        for rank, group in groupby(lines.splitlines(keepends=True), key=_rank):
            if rank is None:
                self._own.write(b"".join(group))
                continue
            text = b"".join(PREFIX.sub(b"", line, count=1) for line in group)
            if rank not in self._workers:
                self._workers[rank] = LogFile(self._run.log(rank), note=self._note)
            self._workers[rank].write(text)
            if rank == 0:
                self._hear(text)

    def close(self) -> None:
        for log in (self._own, *self._workers.values()):
            log.close()


class Agent(Crew):
    """All workers of a node end with their agent, and as the one did that it says was the first to fail.

    `ranks` are the seats that the leader counts; which ranks sit there is known to the agents alone.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        pump: Pump,
        ranks: range,
        *,
        scratch: "tempfile.TemporaryDirectory[str]",
        mark: str,
    ) -> None:
        self.world = len(ranks)
        self._process, self._pump, self._ranks = process, pump, ranks
        self._scratch, self._mark = scratch, f"{MARK}={mark}".encode()
        self._death: Death | None = None
        self._ended: dict[int, int] = {}

    def poll(self) -> dict[int, int]:
        code = self._process.poll()
        if code is not None and not self._ended:
            self._kill_workers()
            self._pump.close()
            said = self._pump.tail
            rank, code = root_cause(said, self._ranks[0], code)
            self._death = death(rank, code, said="\n".join(_lines_of(said, rank)) or said)
            self._ended = dict.fromkeys(self._ranks, code)
        return self._ended

    def death(self, rank: int) -> Death:  # noqa: ARG002 (one for all of them)
        assert self._death is not None
        return self._death

    def terminate(self) -> None:
        """It asks the workers in turn, and gives them half a minute."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        self._kill_workers()
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._pump.close()
        self._scratch.cleanup()

    def _kill_workers(self) -> None:
        """They lead sessions of their own, and outlive an agent that is killed."""
        for folder in Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            with suppress(OSError):
                if pid != self._process.pid and self._mark in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)


def _rank(line: bytes) -> int | None:
    found = PREFIX.match(line)
    return int(found[1]) if found else None


def root_cause(said: str, rank: int, code: int) -> tuple[int, int]:
    """The rank that failed, and its code; the agent's own, where it does not say.

    Its root cause is the worker that ended first, which may be a victim: then another has an error of its own.
    """
    found = CAUSE.search(said) if code else None
    if found is None:
        return rank, code
    first, code = int(found[1]), int(found[2]) or code
    ranks = [first, *sorted({int(one) for one in RANKED.findall(said)} - {first})]
    errors = {one: error_in(_lines_of(said, one)) for one in ranks}
    if (error := errors[first]) is None or error.kind != "symptom":
        return first, code
    return next((one for one, error in errors.items() if error and error.kind == "own"), first), code


def _lines_of(said: str, rank: int) -> list[str]:
    prefix = f"[{rank}] "
    return [line.removeprefix(prefix).rstrip() for line in said.split("\n") if line.startswith(prefix)]
