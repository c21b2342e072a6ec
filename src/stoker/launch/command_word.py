"""What a run is called in the commands that a remedy names."""

import shlex
from pathlib import Path

from stoker.rundir import RunDir


def command_word(run: RunDir) -> str:
    """Its name where that is enough here and now; else where it is kept."""
    return run.name if run.path == Path("runs", run.name).absolute() else shlex.quote(run.place)
