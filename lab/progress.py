"""Progress messages of the lab."""

import os
import sys


def log(line: str) -> None:
    """Print to stderr, because stdout has the results. A closed pipe, as in `| head`, does not stop the work."""
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
