"""Ends a run whose supervisors are killed again and again, for example because the pod runs out of memory.

A supervisor counts the crashes of its workers. It cannot count supervisors that are killed together with their workers,
and a platform may restart their pods forever.
"""

from collections.abc import Sequence

from stoker.rundir import Exit, RunDir, events
from stoker.spec.run import ScriptSpec
from stoker.supervise import run_exit
from stoker.supervise.recorder import recorder
from stoker.supervise.supervisor import STABLE_AFTER_S

MAX_KILLED_SUPERVISORS = 10  # in a row: nodes are lost, but not so often
EXPLAINING_EVENTS = (
    events.CheckpointSaved, events.Failed, events.Finished, events.GaveUp, events.NodeLeft, events.NodeLost,
    events.Paused, events.Regrouping, events.Stopping,
)  # fmt: skip
"""After one of these the end of a supervisor is explained, or the run has made progress."""


def end_crash_loop(run: RunDir) -> Exit | None:
    """Ends the run if too many of its supervisors were killed in a row; None when it may be started again."""
    stable_after_s = STABLE_AFTER_S if isinstance(run.any_spec(), ScriptSpec) else None
    times = killed_supervisors(run.events(), stable_after_s=stable_after_s)
    if times <= MAX_KILLED_SUPERVISORS:
        return None
    exit = run_exit.supervisor_killed(run, times=times)
    recorder(run)(events.GaveUp(text=exit.reason))
    run.write_exit(exit)
    return exit


def killed_supervisors(history: Sequence[events.Event], *, stable_after_s: float | None = None) -> int:
    """How many supervisors in a row ended without a record, since the last one that ran for `stable_after_s`."""
    count, later = 0, None
    for event in reversed(history):
        if isinstance(event, EXPLAINING_EVENTS):
            break
        if isinstance(event, events.World) and not event.restart:
            if stable_after_s is not None and later is not None and later - event.time >= stable_after_s:
                break
            count, later = count + 1, event.time
    return count
