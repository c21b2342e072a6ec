"""The lab's operators are shared by all tests, in all processes: one that turns them off has the lab to itself."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from lab.places import STATE


@contextmanager
def held(*, alone: bool) -> Iterator[None]:
    with open(STATE / "turn.lock", "a") as turn, open(STATE / "gate.lock", "a") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)  # who comes later stands behind one who waits to be alone
        fcntl.flock(turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
