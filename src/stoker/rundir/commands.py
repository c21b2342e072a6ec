"""The commands that remedies name for a run, and the error for a run that is not on this machine."""

import os
import shlex
from pathlib import Path

from stoker.rundir.directory import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError


def default_runs() -> str:
    """The folder or URL of the runs, where a command names none."""
    return os.environ.get(contract.ENV_RUNS) or contract.RUNS_DIR


def in_default_runs(run: RunDir) -> bool:
    return run.path.parent == Path(os.path.expanduser(default_runs())).absolute()


def command_name(run: RunDir) -> str:
    """The run as an argument: its name where it is in the default folder of the runs, else its path."""
    return shlex.quote(run.name if in_default_runs(run) else run.shown)


def require_local(run: RunDir) -> None:
    """Raises UserError for a run that is not on this machine, with the command that copies it here."""
    location = run.location()
    if location.is_here:
        return
    copy = f"./{run.name}-copy"
    raise UserError(
        f"run '{run.name}' is not on this machine: its checkpoints and records are {location.where}",
        remedy=f"Copy it here with: {cp_command(run, copy)}, then name the copy: {copy}",
    )


def cp_command(run: RunDir, to: str) -> str:
    """Copies the run directory, and the token set that it was trained on, from the volume to a folder here."""
    runs = "" if in_default_runs(run) else f"--runs {shlex.quote(str(run.path.parent))} "
    return f"stoker cp {runs}{shlex.quote(f'{run.name}:')} {shlex.quote(to)}"
