"""The program that reads a run directory in a pod that mounts its volume. `VolumeRun` starts it.

`python3 -m stoker.backends.kubernetes.volume.in_pod VERB RUN_DIR OPTIONS` prints one JSON value per line; an error is a
line that begins with ERROR.
"""

import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.backends.local.backend import Local
from stoker.diagnose.records import record_fact
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import NotFound, RunFailed, SavedForLater, StokerError, UserError

ERROR = "!"
ERRORS: dict[str, type[StokerError]] = {
    kind.__name__: kind for kind in (NotFound, UserError, RunFailed, SavedForLater, StokerError)
}
POLL_S = 0.2
Values = Iterator[Any]


def main(argv: list[str]) -> int:
    verb, folder, options = argv
    run = RunDir(Path(folder))
    try:
        if not run.exists():
            raise NotFound(f"there is no run in {folder}", remedy="Its directory has not been uploaded yet")
        for value in VERBS[verb](run, **json.loads(options)):
            print(json.dumps(value), flush=True)
    except StokerError as e:
        kind = next(name for name, kind in ERRORS.items() if isinstance(e, kind))
        print(ERROR + json.dumps({"kind": kind, "problem": e.problem, "remedy": e.remedy}), flush=True)
        return contract.EXIT_USER
    return contract.EXIT_DONE


def _view(run: RunDir) -> Values:
    yield asdict(Local().view(run))


def _events(run: RunDir) -> Values:
    for event in Local().events(run, follow=False):
        yield event.record()


def _logs(run: RunDir, *, rank: int | None, tail: int | None, since: float | None, follow: bool) -> Values:
    for line in Local().logs(run, rank=rank, tail=tail, since=since, follow=follow, pause=_pause):
        yield asdict(line)


def _facts(run: RunDir) -> Values:
    yield asdict(record_fact(run))


def _top(run: RunDir, *, every_s: float | None) -> Values:
    for usage in Local().top(run, every_s=every_s):
        yield asdict(usage)
        if every_s is None or not _pause(every_s):
            return


def _environment(run: RunDir, *, rank: int) -> Values:
    yield asdict(Local().environment(run, rank))


VERBS: dict[str, Callable[..., Values]] = {
    "view": _view,
    "events": _events,
    "logs": _logs,
    "facts": _facts,
    "top": _top,
    "environment": _environment,
}


def _pause(seconds: float = POLL_S) -> bool:
    """False when the user has disconnected: a process in a pod sees only that its stdin has ended."""
    readable, _, _ = select.select([0], [], [], seconds)
    return not readable or os.read(0, 1 << 16) != b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
