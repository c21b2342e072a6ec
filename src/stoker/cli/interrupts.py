"""Ctrl-C, SIGTERM and a closed terminal while a run is being followed: noted, not raised, so that the run can save."""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, Self

from stoker.spec.errors import SavedForLater

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Before `hold`, SIGTERM and SIGHUP end the command as Ctrl-C does; from then on all three are only noted."""

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
            _let_go_of_the_terminal()
        if self._holding:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SavedForLater("stopped before training began", remedy="The same command goes on")


def _let_go_of_the_terminal() -> None:
    """Writing to a terminal that is gone fails, and the run must still be seen to its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
