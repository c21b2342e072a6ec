"""Locks for tests that share the lab, in several processes."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from lab import fake
from lab.places import STATE


@contextmanager
def held(*, alone: bool) -> Iterator[None]:
    """Hold the lab for a test: `alone` for one that stops an operator, shared for all others."""
    with open(STATE / "turn.lock", "a") as turn, open(STATE / "gate.lock", "a") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)  # a test that waits to be alone is not overtaken
        fcntl.flock(turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@contextmanager
def fake_nodes(number: int, *, named: str) -> Iterator[None]:
    """Fake nodes, for one test at a time: a pod that tolerates them could run on those of another test."""
    with open(STATE / "fakes.lock", "a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fake.set_count(number, named=named)
        try:
            yield
        finally:
            fake.set_count(0, named=named)
