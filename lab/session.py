"""Shares the lab between test sessions: it starts with the first and stops with the last, unless it is kept."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from lab import cluster
from lab.places import STATE, USERS


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Start the lab, and keep other sessions from stopping it."""
    with open(USERS, "w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        cluster.up(keep=False)
        yield


def leave() -> None:
    """Stop the lab if no session uses it and it is not kept."""
    if os.geteuid() != 0 or not STATE.exists():  # a lab needs root
        return
    with open(USERS, "w") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        cluster.down_unless_kept()
