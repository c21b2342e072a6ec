"""Progress where there is no terminal: a line every few seconds."""

import sys
import time

from stoker.cli.console import SafeConsole

LINE_EVERY_S = 5.0


def is_live(console: SafeConsole) -> bool:
    """Whether bars can be drawn there."""
    return console.is_terminal and not console.is_dumb_terminal


class OccasionalLines:
    """Prints a line to stderr, unless it has printed one in the last seconds. Results go to stdout alone."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_EVERY_S

    def __call__(self, line: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            print(line, file=sys.stderr, flush=True)
