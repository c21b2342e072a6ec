"""Waits for a condition."""

import time
from collections.abc import Callable

PATIENCE_S = 300  # enough for a start on a machine where other tests run too


def until(
    condition: Callable[[], object],
    *,
    seconds: float = PATIENCE_S,
    every_s: float = 0.05,
    tell: Callable[[], str] = lambda: "",
) -> None:
    """Set `seconds` only if the time is part of the promise. The failure message contains `tell()`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not become true within {seconds} s\n{tell()}"
        time.sleep(every_s)
