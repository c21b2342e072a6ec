"""The workers of one attempt, on this node or on several."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from stoker.spec import contract
from stoker.supervise.workers.exit import WorkerExit

POLL_S = 0.05  # between two checks of the workers
KILL_AFTER_S = 3.0  # between SIGTERM and SIGKILL for the peers of a failed worker: they hang in collectives
SETTLE_S = 0.5  # workers that end within this time are taken to have ended together
ROOT_CAUSE_TIMEOUT_S = 10.0  # for the worker that failed first to end, while the others report broken connections
NODE_LOST = -1000  # instead of a return code: how the workers of a lost node ended is unknown
DONE_OR_SAVED = {contract.EXIT_DONE, contract.EXIT_SAVED}
FATAL = {contract.EXIT_USER, contract.EXIT_FAILED}


class WorkerGroup(ABC):
    world: int
    """How many workers there are."""

    @abstractmethod
    def poll(self) -> dict[int, int]:
        """Return codes by rank of the workers that have ended, in the order in which they ended."""

    @abstractmethod
    def exit_of(self, rank: int) -> WorkerExit:
        """How a worker ended."""

    @abstractmethod
    def terminate(self) -> None:
        """Asks the running workers to save and exit."""

    @abstractmethod
    def kill(self) -> None:
        """Kills the running workers and every process that they have started."""

    @abstractmethod
    def close(self) -> None:
        """Call it when all have ended. All their output is in their logs when this returns."""

    @property
    def regroup_reason(self) -> str | None:
        """Why this attempt should end and another start with other nodes; None if it should not."""
        return None

    @property
    def is_node_leaving(self) -> bool:
        """Whether a node is leaving: it asks its own workers to save and exit before we do."""
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
            time.sleep(POLL_S)
        return True

    def end(self) -> None:
        """No worker runs and all output is in the logs when this returns."""
        self.terminate()
        if not self.wait(KILL_AFTER_S):
            self.kill()
            self.wait(float("inf"))
        self.close()

    def wait_for_root_cause(self, stopping: Callable[[], bool]) -> None:
        """Waits while only victims have ended: a worker that fails slowly may end after its first victim.

        While every worker that ended reports broken connections, the one that broke them has not ended yet.
        """
        self.wait(SETTLE_S)
        deadline, ended_count = time.monotonic() + ROOT_CAUSE_TIMEOUT_S, 0
        while self.alive and time.monotonic() < deadline and not stopping():
            ended = self.poll()
            if len(ended) != ended_count:
                ended_count = len(ended)
                if contract.EXIT_SAVED in ended.values():
                    return  # it closed the connections on purpose
                failed = [self.exit_of(rank) for rank, code in ended.items() if code not in DONE_OR_SAVED]
                if not failed or not all(exit.is_symptom for exit in failed):
                    return
            time.sleep(POLL_S)

    def fatal_exit(self) -> WorkerExit | None:
        """A worker that exited with a code for "do not restart". A victim's code does not count."""
        exit = self._most_likely_cause(FATAL)
        cause = self.root_cause() if exit and exit.is_symptom else None
        return exit if cause is None or cause.is_symptom else None

    def root_cause(self) -> WorkerExit | None:
        """The worker that crashed first; of those that ended together, the one least likely to be a victim."""
        return self._most_likely_cause(set(self.poll().values()) - DONE_OR_SAVED - FATAL)

    def _most_likely_cause(self, codes: set[int]) -> WorkerExit | None:
        exits = [self.exit_of(rank) for rank, code in self.poll().items() if code in codes]
        return min(exits, key=lambda exit: exit.victim_score, default=None)
