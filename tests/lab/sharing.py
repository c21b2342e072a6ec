"""The lab is shared by all tests, in all processes: what two of them may not do at once."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from lab import fake
from lab.places import STATE


@contextmanager
def held(*, alone: bool) -> Iterator[None]:
    """Who turns an operator off has the lab to itself."""
    with open(STATE / "turn.lock", "a") as turn, open(STATE / "gate.lock", "a") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)  # who comes later stands behind one who waits to be alone
        fcntl.flock(turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@contextmanager
def fake_nodes(number: int, *, named: str) -> Iterator[None]:
    """Of one test at a time: a pod that tolerates them would be put on those of another too."""
    with open(STATE / "fakes.lock", "a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fake.set_count(number, named=named)
        try:
            yield
        finally:
            fake.set_count(0, named=named)
