"""Runs a node's workers under torch's own elastic agent: the agents of all nodes agree on the ranks through etcd."""

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

import psutil

from stoker.rundir import RunDir
from stoker.rundir.log_errors import error_in
from stoker.supervise.output.log_file import LogFile
from stoker.supervise.output.reader import OnOutput, OutputReader
from stoker.supervise.workers.environment import common_environment
from stoker.supervise.workers.exit import WorkerExit, worker_exit
from stoker.supervise.workers.group import WorkerGroup

ENV_AGENT = "STOKER_AGENT"  # the id of an agent, in the environment of its processes
MONITOR_INTERVAL_S = "0.1"
RANK_PREFIX = re.compile(rb"\[(\d{1,6})\] ")
RANKS = re.compile(r"^\[(\d{1,6})\] ", re.MULTILINE)
# torch prints this at the end of its output when a worker has failed.
ROOT_CAUSE = re.compile(r"^Root Cause .*?^ +rank +: (\d+) .*?^ +exitcode +: (-?\d+) ", re.MULTILINE | re.DOTALL)


def command(
    worker: Sequence[str], *, endpoint: str, id: str, nodes: int, workers: int, address: str, scratch: str
) -> list[str]:
    """The agent does not restart workers: the supervisors decide that, for all nodes together."""
    options = {
        "rdzv-backend": "etcd",
        "rdzv-endpoint": endpoint,
        "rdzv-id": id,
        "nnodes": str(nodes),
        "nproc-per-node": str(workers),
        "local-addr": address,
        "max-restarts": "0",
        "monitor-interval": MONITOR_INTERVAL_S,
        "tee": "3",
        "log-dir": scratch,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-P", "-m", "torch.distributed.run", *arguments, "--no-python", *worker]


def environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """For the agent, which adds torchrun's variables for its workers."""
    return {
        **common_environment(base, extra),
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}] ",
        ENV_AGENT: uuid.uuid4().hex,
    }


class RankLogs:
    """Splits the output of an agent: lines that start with a rank go to that worker's log, others to the agent's."""

    def __init__(self, run: RunDir, *, node: int, note: Callable[[str], None], on_output: OnOutput) -> None:
        self._run, self._note, self._on_output = run, note, on_output
        self._agent = LogFile(run.logs / f"agent-{node}.log", note=note)
        self._workers: dict[int, LogFile] = {}

    def write(self, lines: bytes) -> None:
        for rank, group in groupby(lines.splitlines(keepends=True), key=_rank):
            if rank is None:
                self._agent.write(b"".join(group))
                continue
            text = b"".join(RANK_PREFIX.sub(b"", line, count=1) for line in group)
            if rank not in self._workers:
                self._workers[rank] = LogFile(self._run.log(rank), note=self._note)
            self._workers[rank].write(text)
            if rank == 0:
                self._on_output(text)

    def close(self) -> None:
        for log in (self._agent, *self._workers.values()):
            log.close()


class TorchAgent(WorkerGroup):
    """All workers of a node end with their agent, with the exit of the worker that the agent reports as first to fail.

    `ranks` are the ranks that the leader counts for this node; only the agents know which ranks really run on it.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        reader: OutputReader,
        ranks: range,
        *,
        scratch: "tempfile.TemporaryDirectory[str]",
        id: str,
    ) -> None:
        self.world = len(ranks)
        self._process, self._reader, self._ranks = process, reader, ranks
        self._scratch, self._id = scratch, id
        self._exit: WorkerExit | None = None
        self._ended: dict[int, int] = {}

    def poll(self) -> dict[int, int]:
        code = self._process.poll()
        if code is not None and not self._ended:
            self._kill_workers()
            self._reader.close()
            output = self._reader.tail
            rank, code = root_cause(output, self._ranks[0], code)
            self._exit = worker_exit(rank, code, output="\n".join(_lines_of(output, rank)) or output)
            self._ended = dict.fromkeys(self._ranks, code)
        return self._ended

    def exit_of(self, rank: int) -> WorkerExit:  # noqa: ARG002 (the same for all of them)
        assert self._exit is not None
        return self._exit

    def terminate(self) -> None:
        """The agent passes the signal on to its workers, and gives them 30 seconds."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        self._kill_workers()
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._reader.close()
        self._scratch.cleanup()

    def _kill_workers(self) -> None:
        """Workers lead their own sessions, and outlive an agent that is killed."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != self._process.pid and process.environ().get(ENV_AGENT) == self._id:
                    process.kill()


def _rank(line: bytes) -> int | None:
    match = RANK_PREFIX.match(line)
    return int(match[1]) if match else None


def root_cause(output: str, rank: int, code: int) -> tuple[int, int]:
    """The rank that failed first, and its code; `rank` and `code` where the agent does not report them.

    The agent reports the worker that ended first, which may be a victim: then a worker with an error of its own counts.
    """
    reported = ROOT_CAUSE.search(output) if code else None
    if reported is None:
        return rank, code
    first, code = int(reported[1]), int(reported[2]) or code
    ranks = [first, *sorted({int(rank) for rank in RANKS.findall(output)} - {first})]
    errors = {rank: error_in(_lines_of(output, rank)) for rank in ranks}
    if (error := errors[first]) is None or error.kind != "symptom":
        return first, code
    return next((rank for rank, error in errors.items() if error and error.kind == "own"), first), code


def _lines_of(output: str, rank: int) -> list[str]:
    prefix = f"[{rank}] "
    return [line.removeprefix(prefix).rstrip() for line in output.split("\n") if line.startswith(prefix)]
