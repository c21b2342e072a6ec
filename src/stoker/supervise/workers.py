"""The workers of one node: processes that die with it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.supervise import agent, interface
from stoker.supervise.crew import Crew, Death, death
from stoker.supervise.curves import Curve
from stoker.supervise.lifeline import die_with
from stoker.supervise.logfile import LogFile
from stoker.supervise.pump import Pump
from stoker.supervise.redact import Redactor, undeclared
from stoker.supervise.rendezvous import StoreServer, expects_server

Hear = Callable[[bytes], None]
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What the workers of a node are told of the attempt that they are part of."""

    attempt: int
    restart: int
    world: int
    first: int
    """The lowest rank on this node."""
    group: int
    """Which of the nodes it is."""
    groups: int
    address: str
    """Where the workers meet: the store is served there."""
    port: int
    served: bool
    """By a supervisor; else by the worker of rank 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a node starts, attempt after attempt."""

    run: RunDir
    command: Sequence[str]
    workers: int
    echo: bool = False
    """Print every line of the workers on our own output too."""
    address: str = LOOPBACK
    """Where other nodes reach this one."""

    def start(
        self,
        spec: AnySpec,
        launch: Launch,
        *,
        note: Callable[[str], None],
        hear: Hear | None = None,
        listener: socket.socket | None = None,
    ) -> Crew:
        """`hear` is given the lines that the worker of rank 0 prints, `note` what the user should know.

        `listener`: where the workers meet, if that is on this node.
        """
        secrets = secret_values(spec)
        if spec.on.rendezvous == "etcd":
            return self._start_agent(spec, launch, secrets, note=note, hear=hear)
        base = os.environ | interface.variables(self.address, nodes=launch.groups, given=os.environ)
        environment = environments(
            base, spec.env | secrets, run=self.run, launch=launch, workers=self.workers, most=spec.on.max_restarts
        )
        pumps, redact = {}, redactor(spec)
        for rank in range(launch.first, launch.first + self.workers):
            ears = [ear for ear in (hear if rank == 0 else None, Echo(b"[%d] " % rank) if self.echo else None) if ear]
            pumps[rank] = Pump(LogFile(self.run.log(rank), note=note), redact, *ears)
        if not isinstance(spec, ScriptSpec):
            return Workers(self.command, environment, pumps, listener=listener)
        store = None
        if listener and launch.served:
            at_once = expects_server(spec, world=launch.world)
            store = StoreServer(listener, os.environ | spec.env, at_once=at_once, note=note)
        return Workers(self.command, environment, pumps, store=store)

    def _start_agent(
        self,
        spec: AnySpec,
        launch: Launch,
        secrets: dict[str, str],
        *,
        note: Callable[[str], None],
        hear: Hear | None,
    ) -> Crew:
        """The worker of rank 0 may be on any node, so each is ready to hear it."""
        scratch = tempfile.TemporaryDirectory(prefix="stoker-agent-")
        command = agent.command(
            self.command,
            endpoint=spec.on.etcd,
            id=f"{self.run.name}-{launch.attempt}-{launch.port}",  # another run's name may be the same
            nodes=launch.groups,
            workers=self.workers,
            address=self.address if launch.groups > 1 else LOOPBACK,
            scratch=scratch.name,
        )
        ours = {contract.ENV_RUN_DIR: str(self.run.path), contract.ENV_ATTEMPT: str(launch.attempt)}
        base = os.environ | interface.variables(self.address, nodes=launch.groups, given=os.environ)
        environment = agent.environment(base, spec.env | secrets | ours)
        own = hear or Curve(self.run, world=launch.world).hear
        logs = agent.RankLogs(self.run, node=launch.group, note=note, hear=own)
        pump = Pump(logs, redactor(spec), *([Echo(b"")] if self.echo else []))
        process = _start(command, environment, pump.sink)
        pump.start()
        ranks = range(launch.first, launch.first + self.workers)
        return agent.Agent(process, pump, ranks, scratch=scratch, mark=environment[agent.MARK])


class Workers(Crew):
    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        pumps: dict[int, Pump],
        *,
        listener: socket.socket | None = None,
        store: StoreServer | None = None,
    ) -> None:
        """One for each pump, which is known by its rank. The first is given `listener`, to serve the store."""
        self.world = len(pumps)
        self._ended: dict[int, int] = {}
        self._pumps, self._store = pumps, store
        self._processes = {
            rank: _start(command, environment, pump.sink, listener=None if rank else listener)
            for environment, (rank, pump) in zip(environments, pumps.items(), strict=True)
        }
        for pump in pumps.values():
            pump.start()

    def poll(self) -> dict[int, int]:
        if self._store and not self._store.poll():
            self.kill()
        alive = [rank for rank in self._processes if rank not in self._ended]
        codes = {rank: code for rank in alive if (code := self._processes[rank].poll()) is not None}
        self._ended |= dict(sorted(codes.items(), key=lambda item: item[1] >= 0))  # the killed before their victims
        return self._ended

    def death(self, rank: int) -> Death:
        pump = self._pumps[rank]
        pump.close()
        return death(rank, self._ended[rank], said=pump.tail)

    # These two are called from any thread.

    def terminate(self) -> None:
        for process in self._living():
            process.terminate()

    def kill(self) -> None:
        for process in self._living():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # each leads a process group of its own

    def close(self) -> None:
        for pump in self._pumps.values():
            pump.close()
        if self._store:
            self._store.close()

    def _living(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes.values() if process.poll() is None]


class Echo:
    """Prints a worker's lines with something before each. They are never mixed with those of another."""

    _one_at_a_time = threading.Lock()

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def __call__(self, lines: bytes) -> None:
        text = self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"
        with self._one_at_a_time, suppress(OSError, ValueError):  # nobody reads it: the log has it all the same
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()


def secret_values(spec: AnySpec) -> dict[str, str]:
    return {name: os.environ[name] for name in spec.secrets if name in os.environ}


def redactor(spec: AnySpec) -> Redactor:
    """For what workers of this run print: their secrets, and what their other variables call so."""
    return Redactor([*secret_values(spec).values(), *undeclared(os.environ | spec.env)])


def alone(*, attempt: int, restart: int, workers: int, port: int, served: bool) -> Launch:
    """All on this node."""
    return Launch(
        attempt=attempt,
        restart=restart,
        world=workers,
        first=0,
        group=0,
        groups=1,
        address=LOOPBACK,
        port=port,
        served=served,
    )


def environments(
    base: Mapping[str, str], extra: Mapping[str, str], *, run: RunDir, launch: Launch, workers: int, most: int
) -> list[dict[str, str]]:
    """What torchrun would give each worker, so that any torchrun script runs unchanged, and our own names."""
    shared = {
        "OMP_NUM_THREADS": "1",  # torchrun's default; the launcher, which has counted the cores, sets a better one
        **base,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **extra,
        "WORLD_SIZE": str(launch.world),
        "LOCAL_WORLD_SIZE": str(workers),
        "ROLE_WORLD_SIZE": str(launch.world),
        "GROUP_WORLD_SIZE": str(launch.groups),
        "GROUP_RANK": str(launch.group),
        "ROLE_NAME": "default",
        "MASTER_ADDR": launch.address,
        "MASTER_PORT": str(launch.port),
        "TORCHELASTIC_RESTART_COUNT": str(launch.restart),
        "TORCHELASTIC_MAX_RESTARTS": str(most),
        "TORCHELASTIC_RUN_ID": run.name,
        "TORCHELASTIC_USE_AGENT_STORE": str(launch.served),  # when true torch connects, and serves no store itself
        contract.ENV_RUN_DIR: str(run.path),
        contract.ENV_ATTEMPT: str(launch.attempt),
    }
    return [
        shared | {"LOCAL_RANK": str(local)} | {name: str(launch.first + local) for name in ("RANK", "ROLE_RANK")}
        for local in range(workers)
    ]


def _start(
    command: Sequence[str], environment: Mapping[str, str], sink: int, *, listener: socket.socket | None = None
) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    fds = [listener.fileno()] if listener else []
    given = {contract.ENV_STORE_FD: str(fds[0])} if fds else {}
    return subprocess.Popen(
        command,
        env={**environment, **given},
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a terminal's Ctrl-C is for the command line alone
        preexec_fn=lambda: die_with(parent),
    )
