"""Finds runs in a folder or a bucket, by name or path."""

import difflib
from pathlib import Path

from stoker.rundir import RunDir
from stoker.rundir.records import RECORD_BYTES, has_time, parse_line
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.files import open_regular
from stoker.storage.mirror import run_dir, run_path, runs_in, shown_folder


def all_runs(folder: Path) -> list[RunDir]:
    """Oldest first."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder", remedy="Name the folder that holds the runs: --runs FOLDER")
    return sorted(runs_in(folder), key=_began)


def is_path(name: str) -> bool:
    """Whether a name is written as a path, and so not the name of a run in the folder of the runs."""
    return name.startswith(("./", "../"))


def find(name: str, folder: Path) -> RunDir:
    """A run by its path, or by its name in `folder`. Raises UserError."""
    run = find_or_none(name, folder)
    if run is None:
        raise not_found(name, folder)
    return run


def find_or_none(name: str, folder: Path) -> RunDir | None:
    paths = (folder / name, run_path(name))
    for path in reversed(paths) if is_path(name) else paths:
        run = run_dir(path)
        if run.exists():
            return run
    return None


def not_found(name: str, folder: Path) -> UserError:
    """The error for a name that no run has, with a similar one."""
    names = [run.name for run in all_runs(folder)]
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    if similar:
        remedy = f"Did you mean {similar[0]}?"
    elif names:
        remedy = f"There are: {', '.join(names[-5:])}"
    else:
        remedy = "Start one with: stoker train RUN.yaml, or name the folder of the runs with --runs DIR"
    return UserError(f"there is no run '{name}' in {shown_folder(folder)}", remedy=remedy)


def _began(run: RunDir) -> float:
    """When it first started. The time of spec.yaml is no help: a resume with a changed spec writes it again."""
    try:
        with open_regular(run.path / contract.EVENTS_FILE, follow_links=False) as file:
            first = parse_line(file.readline(RECORD_BYTES + 1))
        if has_time(first):
            return float(first["time"])
    except (OSError, ValueError):
        pass  # it has not started yet
    try:
        return (run.path / contract.SPEC_FILE).stat().st_mtime
    except OSError:
        return 0.0  # it was deleted just now
