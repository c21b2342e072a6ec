"""Adds events to the run."""

from contextlib import suppress
from typing import Protocol

from stoker.rundir import RunDir, events


class Recorder(Protocol):
    def __call__(self, event: events.Event, *, rank: int | None = None) -> None: ...


def recorder(run: RunDir) -> Recorder:
    """Drops events that cannot be written: a full disk stops a save, not the supervisor."""

    def record(event: events.Event, *, rank: int | None = None) -> None:
        with suppress(OSError):
            run.add_event(event, rank=rank)

    return record
