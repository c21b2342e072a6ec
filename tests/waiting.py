"""Wait for something to happen."""

import time
from collections.abc import Callable

PATIENCE_S = 300  # for a start on a machine where other tests run too


def until(
    condition: Callable[[], object],
    *,
    seconds: float = PATIENCE_S,
    every_s: float = 0.05,
    tell: Callable[[], str] = lambda: "",
) -> None:
    """`seconds` where in time is part of the promise; `tell` for who has to find out why it did not happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain\n{tell()}"
        time.sleep(every_s)
