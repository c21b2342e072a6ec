"""The worker processes of one node. They die with the supervisor that started them."""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from stoker.spec import contract
from stoker.supervise.output.reader import OutputReader
from stoker.supervise.parent_death import die_with_parent
from stoker.supervise.workers.exit import WorkerExit, worker_exit
from stoker.supervise.workers.group import WorkerGroup
from stoker.supervise.workers.store_server import StoreServer


class WorkerProcesses(WorkerGroup):
    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        readers: dict[int, OutputReader],
        *,
        listener: socket.socket | None = None,
        store: StoreServer | None = None,
    ) -> None:
        """Starts one process per reader; the keys are ranks. Rank 0 gets `listener`, to serve torch's store."""
        self.world = len(readers)
        self._ended: dict[int, int] = {}
        self._readers, self._store = readers, store
        self._processes = {
            rank: start_process(command, environment, reader.write_end, listener=None if rank else listener)
            for environment, (rank, reader) in zip(environments, readers.items(), strict=True)
        }
        for reader in readers.values():
            reader.start()

    def poll(self) -> dict[int, int]:
        if self._store and not self._store.poll():
            self.kill()
        running = [rank for rank in self._processes if rank not in self._ended]
        codes = {rank: code for rank in running if (code := self._processes[rank].poll()) is not None}
        self._ended |= dict(sorted(codes.items(), key=lambda item: item[1] >= 0))  # killed workers before their victims
        return self._ended

    def exit_of(self, rank: int) -> WorkerExit:
        reader = self._readers[rank]
        reader.close()
        return worker_exit(rank, self._ended[rank], output=reader.tail)

    # terminate and kill are thread-safe.

    def terminate(self) -> None:
        for process in self._running():
            process.terminate()

    def kill(self) -> None:
        for process in self._running():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # each worker leads its own process group

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        if self._store:
            self._store.close()

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes.values() if process.poll() is None]


def start_process(
    command: Sequence[str], environment: Mapping[str, str], output: int, *, listener: socket.socket | None = None
) -> subprocess.Popen[bytes]:
    """`output`: the file descriptor for standard output and error."""
    parent = os.getpid()
    fds = [listener.fileno()] if listener else []
    store_fd = {contract.ENV_STORE_FD: str(fds[0])} if fds else {}
    return subprocess.Popen(
        command,
        env={**environment, **store_fd},
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in a terminal reaches the command line only
        preexec_fn=lambda: die_with_parent(parent),
    )
