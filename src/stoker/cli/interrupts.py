"""Ctrl-C, SIGTERM and a closed terminal while a run is followed: recorded, not raised, so that the run can save."""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, Self

from stoker.spec.errors import SavedForLater

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Before `hold`, SIGTERM and SIGHUP end the command as Ctrl-C does; after it, all three are only recorded."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._holding = False
        self._before: dict[signal.Signals, Any] = {}

    def hold(self) -> None:
        self._holding = True

    def __enter__(self) -> Self:
        for number in ALL:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background jobs ignore some of them
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the interpreter's signature)
        self.received.append(signal.Signals(number))
        if number == signal.SIGHUP:
            _detach_from_terminal()
        if self._holding:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SavedForLater("stopped before training started", remedy="Run the same command again to resume")


def _detach_from_terminal() -> None:
    """Discard output from now on: writing to a closed terminal fails, and the run must be followed to its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(devnull, stream.fileno())
