"""How test sessions share the lab: it comes up for the first, and goes with the last unless it is kept."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from lab import cluster
from lab.places import STATE, USERS


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """The lab is up, and nobody's `leave` takes it away meanwhile."""
    with open(USERS, "w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        cluster.up(keep=False)
        yield


def leave() -> None:
    """Take the lab down if nobody uses it and nobody said to keep it."""
    if os.geteuid() != 0 or not STATE.exists():  # a lab is root's
        return
    with open(USERS, "w") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        cluster.down_unless_kept()
