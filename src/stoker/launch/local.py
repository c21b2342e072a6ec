"""The Backend of this machine: the supervisor is a child of the command line, and dies with it unless detached."""

import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stoker.launch import machine, secrets
from stoker.launch.backend import Facts, Submission
from stoker.launch.command import SUPERVISOR, submission
from stoker.rundir import RunDir
from stoker.rundir.files import open_writable
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.run import AnySpec


@dataclass(frozen=True, slots=True)
class LocalRunning:
    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        self.process.terminate()

    def holds(self, run: RunDir) -> bool:
        holder = run.holder()
        return holder is not None and holder["pid"] == self.process.pid


class Local:
    def discover(self) -> Facts:
        return machine.facts()

    def plan(self, spec: AnySpec, facts: Facts, run: Path, *, teacher: Model | None = None) -> Submission:
        return submission(spec, facts, run, teacher=teacher)

    def submit(self, submission: Submission, *, detached: bool) -> LocalRunning:
        values = secrets.read(submission.secrets)
        log = submission.run / contract.LOGS_DIR / contract.SUPERVISOR_LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(open_writable(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
            process = subprocess.Popen(
                submission.argv if detached else _tied(submission.argv),
                env=submission.env | os.environ | values,  # what the user has set in the shell counts
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the command line, which passes it on as SIGTERM
            )
        return LocalRunning(process)

    def stop(self, run: RunDir) -> bool:
        holder = run.holder()
        if holder is None:
            return False
        if holder["host"] != socket.gethostname():
            raise UserError(
                f"run '{run.name}' runs on {holder['host']}, not here", remedy=f"Run there: stoker stop {run.place}"
            )
        if not _is_supervisor(holder["pid"]):
            raise UserError(
                f"run '{run.name}' is held by process {holder['pid']}, which is no supervisor",
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


def _tied(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Before the worker's own command, if it names one."""
    at = argv.index("--") if "--" in argv else len(argv)
    return (*argv[:at], "--parent", str(os.getpid()), *argv[at:])


def _is_supervisor(pid: int) -> bool:
    try:
        return SUPERVISOR in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
