"""The Backend of this machine: the supervisor is a child of the command line and dies with it."""

import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stoker.launch import machine
from stoker.launch.backend import Facts, Submission
from stoker.launch.command import SUPERVISOR, submission
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.run import RunSpec


@dataclass(frozen=True, slots=True)
class LocalRunning:
    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        self.process.terminate()


class Local:
    def discover(self) -> Facts:
        return machine.facts()

    def plan(self, spec: RunSpec, facts: Facts, run: Path) -> Submission:
        return submission(spec, facts, run)

    def submit(self, submission: Submission) -> LocalRunning:
        log = submission.run / contract.LOGS_DIR / contract.SUPERVISOR_LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            process = subprocess.Popen(
                [*submission.argv, "--parent", str(os.getpid())],
                env=submission.env | os.environ,  # what the user has set in the shell counts
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
                f"run '{run.name}' runs on {holder['host']}, not here", remedy=f"Run there: stoker stop {run.path}"
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


def _is_supervisor(pid: int) -> bool:
    try:
        return SUPERVISOR in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
