"""What one launch may do: so many steps and so much time, however often its workers are started anew in it."""

import time
from dataclasses import dataclass

from stoker.rundir import RunDir
from stoker.spec.run import Until
from stoker.train.dist import Ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    until: Until
    first: int
    """The step that it began at."""
    began: float
    """When, by this process's clock."""

    def has_enough(self, step: int) -> bool:
        limit = self.until.steps_this_run
        return limit is not None and step - self.first >= limit

    def time_is_up(self) -> bool:
        limit = self.until.time
        return limit is not None and time.monotonic() - self.began >= limit

    def limit(self, step: int) -> str:
        """What has ended it."""
        return "until.steps_this_run" if self.has_enough(step) else "until.time"


def launch_of(run: RunDir, me: Ranks, until: Until, *, step: int) -> Launch:
    """Workers that take the place of others ask the events when these began, and at which step."""
    now = time.monotonic()
    for event in reversed(run.events()) if me.restart else ():
        if event["kind"] == "world" and event.get("restart") == 0:
            break
        if event["kind"] == "started" and "step" in event:
            step, now = event["step"], time.monotonic() - max(0.0, time.time() - event["time"])
    return Launch(until=until, first=step, began=now)
