"""Progress where there is no terminal: a line now and then."""

import sys
import time
from collections.abc import Callable

from stoker.cli.console import SafeConsole

QUIET = 5.0  # seconds between two lines


def is_live(console: SafeConsole) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def seldom(doing: str) -> Callable[[str], None]:
    """Says how far it is, on stderr, unless it has just done so."""
    last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= QUIET:
            last = time.monotonic()
            print(f"{doing}: {text}", file=sys.stderr, flush=True)

    return say
