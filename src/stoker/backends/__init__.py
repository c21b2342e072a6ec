"""Where runs execute: a folder per backend, with the same file names. Never imports the trainer.

To add a backend: a folder whose backend.py implements `backend.BackendModule`, and a line in BACKENDS.
"""

import importlib
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stoker.rundir import RunDir
from stoker.rundir.view import RunRow, unreadable
from stoker.spec.errors import StokerError, UserError
from stoker.spec.on import On

if TYPE_CHECKING:
    from stoker.backends.backend import Backend, BackendModule, Message

BACKENDS = {
    "local": "stoker.backends.local.backend",
    "kubernetes": "stoker.backends.kubernetes.backend",
}
"""Imported on first use: an HTTP client takes a while to import."""


def backend_for(on: On, message: "Message" = lambda _: None) -> "Backend":
    """The backend that a run file names. `message` is given a line when something has to be waited for."""
    return _module(on.kind).backend_for(on, message)


def backend_of(run: RunDir) -> "Backend":
    """The backend that a run was launched on."""
    return _module(_kind(run)).backend_of(run)


def rows(runs: list[RunDir]) -> list[RunRow]:
    """The state of each run. A run that cannot be read gets a row with the error."""
    by_kind: dict[str, list[RunDir]] = defaultdict(list)
    rows_by_path: dict[Path, RunRow] = {}
    for run in runs:
        try:
            by_kind[_kind(run)].append(run)
        except (StokerError, OSError) as e:
            rows_by_path[run.path] = unreadable(run, e)
    for kind, group in by_kind.items():
        rows_by_path |= {Path(row.folder): row for row in _module(kind).rows(group)}
    return [rows_by_path[run.path] for run in runs]


def _kind(run: RunDir) -> str:
    kind = run.backend()
    if kind not in BACKENDS:
        raise UserError(
            f"run '{run.name}' was launched on '{kind}', which this version of Stoker does not have",
            remedy=f"There are: {', '.join(BACKENDS)}",
        )
    return kind


def _module(kind: str) -> "BackendModule":
    return cast("BackendModule", importlib.import_module(BACKENDS[kind]))
