"""Requests to stop: the first signal asks the workers to save, the second kills them."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Counts signals instead of raising: a request never interrupts the supervisor in the middle of a change."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def stop_requested(self) -> bool:
        return len(self.received) > 0

    @property
    def kill_requested(self) -> bool:
        return len(self.received) > 1

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the interpreter's signature)
        self.received.append(signal.Signals(number))
