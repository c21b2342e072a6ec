"""The workers of one attempt, wherever they run: started together, watched together, ended together."""

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from stoker.rundir.log_errors import error_in, last_line
from stoker.spec import contract

POLL = 0.05  # seconds between two looks at the workers
SETTLE = 0.5  # seconds in which a culprit and its victims are taken to have ended together
MERCY = 3.0  # between SIGTERM and SIGKILL for the peers of a dead worker: they hang in collectives
LOST = -1000  # in the place of a return code: nobody knows how the workers of a lost node ended
CAUSE_TIMEOUT_S = 10.0  # for a worker that failed by itself to end, when only broken connections are reported yet
LONGEST = 500  # characters of a line that is quoted elsewhere
CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
"""Signals that a process sends itself; what it printed before tells whether it was a victim."""
CONTROLLED = {contract.EXIT_DONE, contract.EXIT_SAVED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """How a worker ended: a code, the signal that killed it, or with its node."""

    rank: int
    code: int | None
    signal: str | None
    line: str
    """Its error, or where it printed none the last line."""
    said: str
    """The end of what it printed."""
    error: str = ""
    """Which kind of error the line is: own, abort or symptom, as in `log_errors`; empty when it is none."""
    lost: str = ""
    """The node that was lost with it."""

    def __str__(self) -> str:
        if self.lost:
            return f"{self.lost} was lost"
        how = f"was killed by {self.signal}" if self.signal else f"ended with code {self.code}"
        if not self.line:
            return f"worker {self.rank} {how}"
        return f"worker {self.rank} {how}{': ' if self.error else '; its last line: '}{self.line}"

    @property
    def is_symptom(self) -> bool:
        """It ended because another had."""
        return self.error == "symptom" and not self.lost and (self.signal is None or self.signal in CRASHES)

    @property
    def innocence(self) -> int:
        """How likely it is a victim. A worker that is lost or killed takes its peers with it; they end on broken
        connections, with an exit code or by aborting themselves. An error of its own counts more than none."""
        if self.lost:
            return 0
        if self.is_symptom:
            return 4
        if self.signal and (self.signal not in CRASHES or not self.error):
            return 1
        return 2 if self.error == "own" else 3


def death(rank: int, code: int, *, said: str) -> Death:
    """Of a worker whose return code is known; negative ones are signals."""
    name, lines = _signal_name(-code) if code < 0 else None, said.split("\n")
    error = error_in(lines)
    return Death(
        rank=rank,
        code=code if code >= 0 else None,
        signal=name,
        line=(error.line if error else last_line(lines))[:LONGEST],
        said=said,
        error=error.kind if error else "",
    )


class Crew(ABC):
    world: int

    @abstractmethod
    def poll(self) -> dict[int, int]:
        """Return codes by rank of the workers that have ended, in the order they ended."""

    @abstractmethod
    def death(self, rank: int) -> Death:
        """How one of these ended."""

    @abstractmethod
    def terminate(self) -> None:
        """Ask those that live to save and end."""

    @abstractmethod
    def kill(self) -> None:
        """End those that live, with all that they have started."""

    @abstractmethod
    def close(self) -> None:
        """Called when none lives: all that they printed is in their logs when this returns."""

    @property
    def change(self) -> str | None:
        """Why the attempt should be ended for another one with other nodes, if it should."""
        return None

    @property
    def leaving(self) -> bool:
        """Whether a node leaves: it asks its own workers to save and end, before we can."""
        return False

    @property
    def alive(self) -> bool:
        return len(self.poll()) < self.world

    def wait(self, seconds: float) -> bool:
        """True when all have ended within that time."""
        end = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > end:
                return False
            time.sleep(POLL)
        return True

    def end(self) -> None:
        """No worker is left when this returns, and all that they printed is in their logs."""
        self.terminate()
        if not self.wait(MERCY):
            self.kill()
            self.wait(float("inf"))
        self.close()

    def settle(self, stopping: Callable[[], bool]) -> None:
        """A culprit that dies slowly is not yet seen when its first victim is.

        While all that ended report broken connections, the one that broke them is still to come.
        """
        self.wait(SETTLE)
        deadline, seen = time.monotonic() + CAUSE_TIMEOUT_S, 0
        while self.alive and time.monotonic() < deadline and not stopping():
            ended = self.poll()
            if len(ended) != seen:
                seen = len(ended)
                if contract.EXIT_SAVED in ended.values():
                    return  # it broke the connections, and knew why
                crashed = [self.death(rank) for rank, code in ended.items() if code not in CONTROLLED]
                if not crashed or not all(death.is_symptom for death in crashed):
                    return
            time.sleep(POLL)

    def fatal(self) -> Death | None:
        """A worker that said itself that trying again would not help. A victim cannot know."""
        found = self._first({contract.EXIT_USER, contract.EXIT_FAILED})
        culprit = self.culprit() if found and found.is_symptom else None
        return found if culprit is None or culprit.is_symptom else None

    def culprit(self) -> Death | None:
        """The worker that crashed first; of those that ended together, the one least likely to be a victim."""
        return self._first(set(self.poll().values()) - CONTROLLED - {contract.EXIT_USER, contract.EXIT_FAILED})

    def _first(self, codes: set[int]) -> Death | None:
        found = [self.death(rank) for rank, code in self.poll().items() if code in codes]
        return min(found, key=lambda death: death.innocence, default=None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
