"""This machine: the supervisor is a child process of the command line, and ends with it unless it is detached."""

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.backends import secrets
from stoker.backends.backend import (
    Backend,
    Details,
    Facts,
    Files,
    Listener,
    Message,
    Rows,
    Scaled,
    Submission,
    Usage,
)
from stoker.backends.local import machine
from stoker.backends.local.plan import plan
from stoker.rundir import Exit, Record, RunDir
from stoker.rundir.commands import command_name
from stoker.rundir.events import Event, parse_event
from stoker.rundir.logs import LogLine, LogView, ranks
from stoker.rundir.records import Tail
from stoker.rundir.state import RunState
from stoker.rundir.view import RunRow, RunView, how_it_ended, row, unreadable, view
from stoker.spec import contract
from stoker.spec.errors import NotFound, RunFailed, StokerError, UserError
from stoker.spec.files import open_writable
from stoker.spec.model import Model
from stoker.spec.on import On
from stoker.spec.run import AnySpec
from stoker.spec.units import short_duration

# Every command loads this module, and `ps` and `status` must start fast: what few commands need is loaded by these.
if TYPE_CHECKING:
    from stoker.backends.local.environment import WorkerEnvironment
    from stoker.diagnose.facts import DiagnosisFacts

POLL_S = 0.2
TOP_SPAN_S = 0.5  # the first CPU use is measured over this time
MESSAGE_EVERY_S = 10.0
STOP_TIMEOUT_S = 660.0  # a supervisor allows ten minutes for a save, then ends its workers
KILLED = -9


def backend_for(on: On, message: Message) -> Backend:  # noqa: ARG001 (there is one machine)
    return Local()


def backend_of(run: RunDir) -> Backend:  # noqa: ARG001
    return Local()


def rows(runs: list[RunDir]) -> list[RunRow]:
    return [_row(run) for run in runs]


def _row(run: RunDir) -> RunRow:
    try:
        return row(run)
    except (StokerError, OSError) as e:  # a damaged run must not hide the others
        return unreadable(run, e)


@dataclass(frozen=True, slots=True)
class LocalRunning:
    process: subprocess.Popen[bytes]
    where: str = "in the background"

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        self.process.terminate()

    def has_started(self, run: RunDir) -> bool:
        holder = run.holder()
        return holder is not None and holder["pid"] == self.process.pid

    def record(self) -> Record:
        return {"state": RunState.RUNNING, "pid": self.process.pid}


class Local:
    def discover(self) -> Facts:
        return machine.facts()

    def assumed(self) -> Facts:
        return machine.facts()

    def plan(self, spec: AnySpec, facts: Facts, run: Path, *, teacher: Model | None = None) -> Submission:
        return plan(spec, facts, run, teacher=teacher)

    def check(self, spec: AnySpec, facts: Facts, submission: Submission) -> list[str]:  # noqa: ARG002
        return []

    def describe(self, spec: AnySpec, facts: Facts, submission: Submission) -> Rows:  # noqa: ARG002
        return []

    def stage(
        self,
        submission: Submission,
        spec: AnySpec,  # noqa: ARG002
        facts: Facts,  # noqa: ARG002
        listener: Listener,
    ) -> Submission:
        listener.committed()
        return submission

    def submit(self, submission: Submission, *, detached: bool) -> LocalRunning:
        values = secrets.read(submission.secrets)
        log = submission.run / contract.LOGS_DIR / contract.SUPERVISOR_LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(open_writable(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
            process = subprocess.Popen(
                submission.argv if detached else _tied(submission.argv),
                env=submission.env | os.environ | values,  # the user's shell has precedence
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the command line, which passes it on as SIGTERM
            )
        return LocalRunning(process)

    def view(self, run: RunDir) -> RunView:
        return view(run)

    def details(self, view: RunView) -> Details:  # noqa: ARG002
        return Details()

    def events(self, run: RunDir, *, follow: bool) -> Iterator[Event]:
        tail = Tail(run.path / contract.EVENTS_FILE)
        while True:
            running = run.holder() is not None  # checked before reading, so that the last lines are read too
            yield from tail.records(parse_event)
            run.skipped[contract.EVENTS_FILE] = tail.skipped
            if not (follow and running):
                return
            time.sleep(POLL_S)

    def metrics(self, run: RunDir) -> list[Record]:
        return run.metrics()

    def logs(
        self,
        run: RunDir,
        *,
        rank: int | None,
        tail: int | None,
        since: float | None,
        follow: bool,
        pause: Callable[[], bool],
    ) -> Iterator[LogLine]:
        log = LogView(run, rank=rank, tail=tail, since=since)
        if not ranks(run) and not follow:
            raise NotFound(
                f"run '{run.name}' has no logs yet", remedy="Its workers have not started; wait for them with -f"
            )
        while True:
            running = run.holder() is not None  # checked before reading, as above
            yield from log.records(ended=not running)
            if not running or not follow or not pause():
                return

    def facts(self, run: RunDir, *, brief: bool) -> "DiagnosisFacts":  # noqa: ARG002 (reading files is fast)
        from stoker.diagnose.facts import DiagnosisFacts  # noqa: PLC0415 (see above)
        from stoker.diagnose.records import record_fact, run_fact  # noqa: PLC0415

        return DiagnosisFacts(run=run_fact(run), record=record_fact(run))

    def top(self, run: RunDir, *, every_s: float | None) -> Iterator[Usage]:  # noqa: ARG002
        from stoker.backends.local.top import Top  # noqa: PLC0415 (see above)

        top = Top(run)
        if row(run).state is RunState.RUNNING:
            time.sleep(TOP_SPAN_S)
        while True:
            workers, now = top.read(), row(run)
            yield Usage(
                state=now.state,
                step=now.step,
                steps=now.steps,
                tokens_per_second=now.tokens_per_second,
                workers=workers,
            )
            if now.state is not RunState.RUNNING:
                return

    def environment(self, run: RunDir, rank: int) -> "WorkerEnvironment":
        from stoker.backends.local.environment import worker_environment  # noqa: PLC0415 (see above)

        return worker_environment(run, rank)

    def stop(self, run: RunDir) -> bool:
        holder = run.holder()
        if holder is None:
            return False
        if not holder["pid"]:  # the lock is taken a moment before its holder is written to it
            raise UserError(f"run '{run.name}' is just starting", remedy="Wait a moment and try again")
        if holder["host"] != socket.gethostname():
            raise UserError(
                f"run '{run.name}' runs on {holder['host']}, not on this machine",
                remedy=f"Run there: stoker stop {shlex.quote(run.shown)}",
            )
        if not _is_supervisor(holder["pid"]):
            raise UserError(
                f"run '{run.name}' is held by process {holder['pid']}, which is not a supervisor",
                remedy="Wait a moment and try again",
            )
        try:
            os.kill(holder["pid"], signal.SIGTERM)
        except ProcessLookupError:
            return False
        except PermissionError as e:
            raise UserError(
                f"process {holder['pid']} of run '{run.name}' belongs to another user",
                remedy="Ask its owner to stop it",
            ) from e
        return True

    def wait(self, run: RunDir, *, timeout_s: float | None = None, code: int | None = None) -> Exit:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while run.holder() is not None:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"run '{run.name}' has not ended in {timeout_s} s")
            time.sleep(POLL_S)
        exit = run.exit()
        return how_it_ended(run, code or (exit.code if exit else KILLED))

    def await_stopped(self, run: RunDir, message: Message) -> None:
        began, last = time.monotonic(), 0.0
        while holder := run.holder():
            waited = time.monotonic() - began
            if waited > STOP_TIMEOUT_S:
                raise RunFailed(
                    f"run '{run.name}' has not stopped in {short_duration(waited)}",
                    remedy=f"Kill it without a save with: kill -9 {holder['pid']}; the same stoker train command then "
                    "resumes from its last checkpoint",
                )
            if waited - last >= MESSAGE_EVERY_S:
                last = waited
                message(
                    f"waiting for its workers to save ({short_duration(waited)}); "
                    f"to stop it without a save: stoker stop {shlex.quote(str(run.path))}"
                )
            time.sleep(POLL_S)

    def scale(
        self,
        run: RunDir,
        nodes: str,  # noqa: ARG002
        *,
        message: Message,  # noqa: ARG002
        committed: Callable[[], None],  # noqa: ARG002
    ) -> Scaled:
        name = command_name(run)
        raise UserError(
            f"run '{run.name}' runs on this machine, which is its only node",
            remedy=f"Change its workers instead: stoker stop {name}, then stoker launch {name} on.workers=2",
        )

    def files(self, run: RunDir, *, moving: bool = False) -> Files:  # noqa: ARG002
        raise UserError(
            f"run '{run.name}' is on this machine, in {run.path}",
            remedy=f"Use its files directly: cd {shlex.quote(str(run.path))}",
        )


def _tied(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Adds the option that ends the supervisor with this process, before the worker's own command if there is one."""
    at = argv.index("--") if "--" in argv else len(argv)
    return (*argv[:at], "--parent", str(os.getpid()), *argv[at:])


def _is_supervisor(pid: int) -> bool:
    from stoker.backends.local import processes  # noqa: PLC0415 (see above)

    return contract.SUPERVISOR_MODULE in processes.command(pid)
