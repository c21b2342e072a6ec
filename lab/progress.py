"""What the lab tells of its work."""

import os
import sys


def say(line: str) -> None:
    """On stderr: stdout is for what was asked for. A reader that has gone, as in `| head`, does not stop the work."""
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
