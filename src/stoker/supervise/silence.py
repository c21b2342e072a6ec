"""Supervisors before this one that ended without a word: killed with their workers, as when a pod's memory runs out.

Each of them counts the crashes of its own workers; nobody else counts these, and pods may be started again for ever.
"""

from collections.abc import Sequence

from stoker.rundir import Exit, Record, RunDir
from stoker.spec.run import ScriptSpec
from stoker.supervise import verdict
from stoker.supervise.supervisor import STEADY, noted

MOST = 10  # in a row: nodes are lost, but not so often
SPOKEN = {"checkpoint", "failed", "finished", "gave up", "left", "lost", "paused", "regrouping", "stopping"}
"""Events after which the end of a supervisor is explained, or was worth it."""


def give_up(run: RunDir) -> Exit | None:
    """The end of a run whose supervisors come to nothing; None when another may try."""
    times = silent_ends(run.events(), steady=STEADY if isinstance(run.any_spec(), ScriptSpec) else None)
    if times <= MOST:
        return None
    end = verdict.silenced(run, times=times)
    noted(run)("gave up", text=end.reason)
    run.write_exit(end)
    return end


def silent_ends(events: Sequence[Record], *, steady: float | None = None) -> int:
    """In a row, up to now. A supervisor that lived for `steady` seconds got somewhere."""
    count, later = 0, None
    for event in reversed(events):
        if event["kind"] in SPOKEN:
            break
        if event["kind"] == "world" and not event.get("restart"):
            if steady is not None and later is not None and later - event["time"] >= steady:
                break
            count, later = count + 1, event["time"]
    return count
