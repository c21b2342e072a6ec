"""The workers of one attempt, wherever they run: started together, watched together, ended together."""

import re
import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from stoker.spec import contract

POLL = 0.05  # seconds between two looks at the workers
SETTLE = 0.5  # seconds in which a culprit and its victims are taken to have ended together
MERCY = 3.0  # between SIGTERM and SIGKILL for the peers of a dead worker: they hang in collectives
LOST = -1000  # in the place of a return code: nobody knows how the workers of a lost node ended
LAST_WORDS = 1000  # characters
BEREFT = re.compile(contract.BEREFT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """How a worker ended: a code, the signal that killed it, or with its node."""

    rank: int
    code: int | None
    signal: str | None
    line: str
    """The last that it printed."""
    said: str
    """The end of what it printed."""
    lost: str = ""
    """The node that was lost with it."""

    def __str__(self) -> str:
        if self.lost:
            return f"{self.lost} was lost"
        how = f"was killed by {self.signal}" if self.signal else f"ended with code {self.code}"
        return f"worker {self.rank} {how}" + (f": {self.line}" if self.line else "")

    @property
    def innocence(self) -> int:
        """Who is lost or killed takes its peers with it; they end with exit codes, and never the other way round."""
        if self.lost:
            return 0
        if self.signal:
            return 1
        return 3 if BEREFT.search(self.said[-LAST_WORDS:]) else 2


def death(rank: int, code: int, *, line: str, said: str) -> Death:
    """Of a worker whose return code is known; negative ones are signals."""
    name = _signal_name(-code) if code < 0 else None
    return Death(rank=rank, code=code if code >= 0 else None, signal=name, line=line, said=said)


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

    def settle(self) -> None:
        """A culprit that dies slowly is not yet seen when its first victim is."""
        self.wait(SETTLE)

    def fatal(self) -> Death | None:
        """A worker that said itself that trying again would not help."""
        return self._first({contract.EXIT_USER, contract.EXIT_FAILED})

    def culprit(self) -> Death | None:
        """The worker that crashed first; of those that ended together, the one least likely to be a victim."""
        controlled = {contract.EXIT_DONE, contract.EXIT_USER, contract.EXIT_FAILED, contract.EXIT_SAVED}
        return self._first(set(self.poll().values()) - controlled)

    def _first(self, codes: set[int]) -> Death | None:
        found = [self.death(rank) for rank, code in self.poll().items() if code in codes]
        return min(found, key=lambda death: death.innocence, default=None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
