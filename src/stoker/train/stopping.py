"""Reasons to end a launch before the run is done: a signal, or a limit of `until` that applies to each launch."""

import signal
import time
from dataclasses import dataclass
from types import FrameType

from stoker.rundir import RunDir
from stoker.rundir.events import Started, World
from stoker.spec.run import Until
from stoker.train.process_group import Ranks


class StopSignals:
    """Remembers that SIGTERM or SIGINT asked the run to save and exit; the training loop checks it before each step."""

    def __init__(self) -> None:
        self.received = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchLimits:
    """Steps and time that a launch may take, however often its workers are restarted."""

    until: Until
    first_step: int
    """The step that the launch started at."""
    start_time: float
    """When it started, by this process's monotonic clock."""

    def steps_are_done(self, step: int) -> bool:
        limit = self.until.steps_this_run
        return limit is not None and step - self.first_step >= limit

    def time_is_up(self) -> bool:
        limit = self.until.time
        return limit is not None and time.monotonic() - self.start_time >= limit

    def reached(self, step: int) -> str:
        """The name of the limit that has ended the launch."""
        return "until.steps_this_run" if self.steps_are_done(step) else "until.time"


def launch_limits(run: RunDir, worker: Ranks, until: Until, *, step: int) -> LaunchLimits:
    """Restarted workers read from the events when the first workers of the launch started, and at which step."""
    started = time.monotonic()
    for event in reversed(run.events()) if worker.restart else ():
        if isinstance(event, World) and event.restart == 0:
            break
        if isinstance(event, Started):
            step, started = event.step, time.monotonic() - max(0.0, time.time() - event.time)
    return LaunchLimits(until=until, first_step=step, start_time=started)
