"""Again after a cut, as long as something gets through."""

import time
from collections.abc import Callable

from stoker.launch.transfer.frames import Cut
from stoker.launch.transfer.meter import Meter
from stoker.spec.errors import UserError

TRIES = 8  # in a row, without progress


def patiently(
    work: Callable[[], None],
    meter: Meter,
    *,
    marks: Callable[[], tuple[int, ...]],
    pauses: tuple[float, float],
    waiting: Callable[[Cut], str],
    lost: str,
    remedy: str,
) -> None:
    """A try came further when one of its marks is above the best so far. Pauses double from the first to the longest.

    `waiting` is said before each pause, `lost` and `remedy` when it is given up.
    """
    failures, best = 0, marks()
    first, longest = pauses
    while True:
        try:
            return work()
        except Cut as e:
            reached = marks()
            further = any(now > before for now, before in zip(reached, best, strict=True))
            failures = 1 if further else failures + 1
            best = tuple(map(max, reached, best))
            if failures == TRIES:
                raise UserError(f"{lost} {TRIES} times in a row ({e})", remedy=remedy) from e
            meter.wait(waiting(e))
            time.sleep(min(longest, first * 2 ** (failures - 1)))
