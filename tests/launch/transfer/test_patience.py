"""How long a transfer that is cut goes on."""

import pytest

from stoker.launch.transfer.frames import Cut
from stoker.launch.transfer.meter import Meter, Progress
from stoker.launch.transfer.patience import TRIES, patiently
from stoker.spec.errors import UserError


class Transfer:
    """Cut at every try but the last; it comes further in those that are named."""

    def __init__(self, *, cuts: int, further: set[int]) -> None:
        self.told: list[Progress] = []
        self.tries = 0
        self._cuts, self._further = cuts, further
        self._meter = Meter(self.told.append)
        self._meter.begin(total=100, files=1, there=0, files_there=0)

    def run(self) -> None:
        patiently(
            self._once,
            self._meter,
            marks=lambda: (self._meter.progress.done,),
            pauses=(0.001, 0.002),
            waiting=lambda cut: f"cut ({cut})",
            lost="the transfer was cut",
            remedy="Try again",
        )

    def _once(self) -> None:
        self.tries += 1
        if self.tries in self._further:
            self._meter.move(1)
        if self.tries <= self._cuts:
            raise Cut(f"number {self.tries}")


def test_it_is_given_up_after_so_many_cuts_in_a_row_without_progress() -> None:
    transfer = Transfer(cuts=100, further={1, 4})
    said = rf"the transfer was cut {TRIES} times in a row \(number {TRIES + 3}\)"
    with pytest.raises(UserError, match=said) as error:
        transfer.run()
    assert error.value.remedy == "Try again"
    assert transfer.tries == TRIES + 3  # the fourth came further, and counts as the first of a new row


def test_it_goes_on_as_long_as_something_gets_through_and_says_why_it_waits() -> None:
    transfer = Transfer(cuts=3 * TRIES, further=set(range(1, 3 * TRIES + 1)))
    transfer.run()
    assert transfer.tries == 3 * TRIES + 1
    waited = [progress.waiting for progress in transfer.told if progress.waiting]
    assert waited == [f"cut (number {number})" for number in range(1, 3 * TRIES + 1)]
