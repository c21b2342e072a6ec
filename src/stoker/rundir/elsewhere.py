"""Runs that live in a cluster: the folder here says where they are, and holds nothing that they wrote."""

import shlex
from pathlib import Path

from stoker.rundir.directory import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError


def refuse_elsewhere(run: RunDir) -> None:
    """Raises UserError for a run on a cluster's volume, with the command that copies it here."""
    place = run.place_ref()
    if place is None:
        return
    context = f" of context {place.context}" if place.context else ""
    copy = f"./{run.name}-copy"
    raise UserError(
        f"run '{run.name}' lives in a cluster: its checkpoints and records are in {contract.VOLUME_RUNS}/{place.run} "
        f"on volume claim '{place.volume}' in namespace {place.namespace}{context}",
        remedy=f"Copy it here with: {cp_command(run, copy)}, then name the copy: {copy}",
    )


def cp_command(run: RunDir, to: str) -> str:
    """What copies the run directory, and the token set that it was trained on, from the volume to a folder here."""
    folder = run.path.parent
    runs = "" if folder == Path("runs").absolute() else f"--runs {shlex.quote(str(folder))} "
    return f"stoker cp {runs}{run.name}: {shlex.quote(to)}"
