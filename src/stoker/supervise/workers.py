"""The workers of one attempt: started together, watched together, ended together."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.supervise.lifeline import die_with
from stoker.supervise.logfile import LogFile
from stoker.supervise.pump import Pump
from stoker.supervise.redact import Redactor

POLL = 0.05  # seconds between two looks at the workers
SETTLE = 0.5  # seconds in which a culprit and its victims are taken to have ended together
MERCY = 3.0  # between SIGTERM and SIGKILL for the peers of a dead worker: they hang in collectives


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """How a worker ended: a code, or the signal that killed it."""

    rank: int
    code: int | None
    signal: str | None
    line: str
    """The last that it printed."""
    said: str
    """The end of what it printed."""

    def __str__(self) -> str:
        how = f"was killed by {self.signal}" if self.signal else f"ended with code {self.code}"
        return f"worker {self.rank} {how}" + (f": {self.line}" if self.line else "")


class Workers:
    def __init__(
        self,
        run: RunDir,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *,
        redact: Redactor,
        hear: Callable[[bytes], None] | None = None,
    ) -> None:
        """`hear` is given the lines that the first worker prints."""
        self._ended: dict[int, int] = {}  # rank -> return code, in the order they ended

        def note(text: str) -> None:
            with suppress(OSError):  # on a full disk the log has no room, and neither have the events
                run.add_event("note", text=text)

        self._pumps = [
            Pump(LogFile(run.log(rank), note=note), redact, hear if rank == 0 else None)
            for rank in range(len(environments))
        ]
        self._processes = [
            _start(command, environment, pump.sink) for environment, pump in zip(environments, self._pumps, strict=True)
        ]
        for pump in self._pumps:
            pump.start()

    def poll(self) -> dict[int, int]:
        """Return codes by rank of the workers that have ended, in the order they ended."""
        alive = [rank for rank in range(len(self._processes)) if rank not in self._ended]
        codes = {rank: code for rank in alive if (code := self._processes[rank].poll()) is not None}
        self._ended |= dict(sorted(codes.items(), key=lambda item: _innocence(item[1])))
        return self._ended

    @property
    def alive(self) -> bool:
        return len(self.poll()) < len(self._processes)

    def terminate(self) -> None:
        for process in self._living():
            process.terminate()

    def kill(self) -> None:
        """With all that they have started: each worker leads a process group of its own."""
        for process in self._living():
            os.killpg(process.pid, signal.SIGKILL)

    def _living(self) -> list[subprocess.Popen[bytes]]:
        ended = self.poll()
        return [process for rank, process in enumerate(self._processes) if rank not in ended]

    def wait(self, seconds: float) -> bool:
        """True when all have ended within that time."""
        end = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > end:
                return False
            time.sleep(POLL)
        return True

    def end(self) -> None:
        """No worker is left when this returns, and all that they printed is in their logs."""
        self.terminate()
        if not self.wait(MERCY):
            self.kill()
            self.wait(float("inf"))
        for pump in self._pumps:
            pump.close()

    def fatal(self) -> Death | None:
        """A worker that said itself that trying again would not help."""
        return self._first({contract.EXIT_USER, contract.EXIT_FAILED})

    def culprit(self) -> Death | None:
        """The worker that crashed first; of those that ended together, the one least likely to be a victim."""
        controlled = {contract.EXIT_DONE, contract.EXIT_USER, contract.EXIT_FAILED, contract.EXIT_SAVED}
        return self._first(set(self.poll().values()) - controlled)

    def settle(self) -> None:
        """A culprit that dies slowly is not yet seen when its first victim is."""
        self.wait(SETTLE)

    def _first(self, codes: set[int]) -> Death | None:
        found = [(rank, code) for rank, code in self.poll().items() if code in codes]
        if not found:
            return None
        rank, code = min(found, key=lambda item: _innocence(item[1]))
        pump = self._pumps[rank]
        pump.close()
        return Death(
            rank=rank,
            code=code if code >= 0 else None,
            signal=_signal_name(-code) if code < 0 else None,
            line=pump.last_line,
            said=pump.tail,
        )


def _start(command: Sequence[str], environment: Mapping[str, str], sink: int) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a terminal's Ctrl-C is for the command line alone
        preexec_fn=lambda: die_with(parent),
    )


def environments(
    base: Mapping[str, str], extra: Mapping[str, str], *, run: RunDir, world: int, attempt: int, restart: int, most: int
) -> list[dict[str, str]]:
    """What torchrun would give each worker, so that any torchrun script runs unchanged, and our own names."""
    shared = {
        "OMP_NUM_THREADS": "1",  # torchrun's default; the launcher, which has counted the cores, sets a better one
        **base,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **extra,
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "ROLE_WORLD_SIZE": str(world),
        "GROUP_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_MAX_RESTARTS": str(most),
        "TORCHELASTIC_RUN_ID": run.name,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # the first worker holds the store itself
        contract.ENV_RUN_DIR: str(run.path),
        contract.ENV_ATTEMPT: str(attempt),
    }
    return [shared | {name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")} for rank in range(world)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _innocence(code: int) -> int:
    """A killed worker takes its peers with it; they end with exit codes, and never the other way round."""
    return 0 if code < 0 else 1


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
