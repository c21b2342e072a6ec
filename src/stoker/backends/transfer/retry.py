"""Retries after a lost connection, as long as there is progress."""

import time
from collections.abc import Callable

from stoker.backends.transfer.frames import PeerLost
from stoker.backends.transfer.meter import TransferMeter
from stoker.spec.errors import UserError

MAX_FAILURES = 8  # in a row, without progress


def with_retries(
    work: Callable[[], None],
    meter: TransferMeter,
    *,
    marks: Callable[[], tuple[int, ...]],
    pauses_s: tuple[float, float],
    waiting: Callable[[PeerLost], str],
    lost: str,
    remedy: str,
) -> None:
    """A try made progress if one of its marks is above the best so far. Pauses double from the first to the longest.

    `waiting` is shown during each pause; `lost` and `remedy` make the final error.
    """
    failures, best = 0, marks()
    first, longest = pauses_s
    while True:
        try:
            return work()
        except PeerLost as e:
            reached = marks()
            further = any(now > before for now, before in zip(reached, best, strict=True))
            failures = 1 if further else failures + 1
            best = tuple(map(max, reached, best))
            if failures == MAX_FAILURES:
                raise UserError(f"{lost} {MAX_FAILURES} times in a row ({e})", remedy=remedy) from e
            meter.wait(waiting(e))
            time.sleep(min(longest, first * 2 ** (failures - 1)))
