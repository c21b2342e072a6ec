"""The states of a run."""

from enum import StrEnum


class RunState(StrEnum):
    WAITING = "waiting"
    """Waiting for nodes, for a queue, or for its image."""
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    PAUSED = "paused"
    """Saved, and can be resumed."""
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """It is not running, and could not record why."""
    UNKNOWN = "unknown"
    """Its records, or its cluster, cannot be read."""

    @property
    def is_active(self) -> bool:
        """It is running, or will run without being asked."""
        return self in (RunState.WAITING, RunState.RUNNING, RunState.RESTARTING, RunState.STOPPING)

    @property
    def is_terminal(self) -> bool:
        """It ended, and it is known how."""
        return self in (RunState.DONE, RunState.FAILED, RunState.PAUSED)

    @property
    def is_finished(self) -> bool:
        """It ended by itself: a paused run was asked to stop, and is to be resumed."""
        return self in (RunState.DONE, RunState.FAILED)
