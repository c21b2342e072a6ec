"""The requests to stop: the first asks the workers to save, the second ends them at once."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

REQUESTS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Counts instead of raising: a request never cuts a step of the supervisor in two."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._before: dict[signal.Signals, Any] = {}

    @property
    def stopping(self) -> bool:
        return len(self.received) > 0

    @property
    def impatient(self) -> bool:
        return len(self.received) > 1

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._receive) for number in REQUESTS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the interpreter's signature)
        self.received.append(signal.Signals(number))
