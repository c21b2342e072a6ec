"""How a worker ended, and how likely it only failed because another worker did."""

import signal
from dataclasses import dataclass

from stoker.rundir.log_errors import error_in, last_line

MAX_LINE_CHARS = 500  # of a line that is quoted in events and in exit.json
CRASH_SIGNALS = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
"""Signals that a process raises itself. Its output shows whether another worker's failure was the cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExit:
    """A worker ended with a code, was killed by a signal, or was lost with its node."""

    rank: int
    code: int | None
    signal: str | None
    line: str
    """The error it printed, or its last line if it printed none."""
    output: str
    """The end of its output."""
    error: str = ""
    """The kind of error in `line`: own, abort or symptom, as in `log_errors`; empty if it is not an error."""
    lost_node: str = ""
    """The node that was lost with it."""

    def __str__(self) -> str:
        if self.lost_node:
            return f"{self.lost_node} was lost"
        how = f"was killed by {self.signal}" if self.signal else f"ended with code {self.code}"
        if not self.line:
            return f"worker {self.rank} {how}"
        return f"worker {self.rank} {how}{': ' if self.error else '; its last line: '}{self.line}"

    @property
    def is_symptom(self) -> bool:
        """It ended because another worker had ended."""
        return self.error == "symptom" and not self.lost_node and (self.signal is None or self.signal in CRASH_SIGNALS)

    @property
    def victim_score(self) -> int:
        """How likely another worker's failure ended it: the root cause is the worker with the lowest score.

        When a worker is lost or killed, its peers fail on broken connections, with an exit code or by aborting. Among
        the others, a worker that printed its own error is more likely the cause than a worker that did not.
        """
        if self.lost_node:
            return 0
        if self.is_symptom:
            return 4
        if self.signal and (self.signal not in CRASH_SIGNALS or not self.error):
            return 1
        return 2 if self.error == "own" else 3


def worker_exit(rank: int, code: int, *, output: str) -> WorkerExit:
    """Of a process that ended with this return code; a negative code is a signal, as in subprocess."""
    lines = output.split("\n")
    error = error_in(lines)
    return WorkerExit(
        rank=rank,
        code=code if code >= 0 else None,
        signal=_signal_name(-code) if code < 0 else None,
        line=(error.line if error else last_line(lines))[:MAX_LINE_CHARS],
        output=output,
        error=error.kind if error else "",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
