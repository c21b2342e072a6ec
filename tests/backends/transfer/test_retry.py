"""How long an interrupted transfer is retried."""

import pytest

from stoker.backends.transfer.frames import PeerLost
from stoker.backends.transfer.meter import TransferMeter, TransferProgress
from stoker.backends.transfer.retry import MAX_FAILURES, with_retries
from stoker.spec.errors import UserError


class Transfer:
    """Raises PeerLost at every try but the last; the named tries make progress."""

    def __init__(self, *, interruptions: int, progress_at: set[int]) -> None:
        self.reports: list[TransferProgress] = []
        self.tries = 0
        self._interruptions, self._progress_at = interruptions, progress_at
        self._meter = TransferMeter(self.reports.append)
        self._meter.begin(total=100, files=1, present=0, files_present=0)

    def run(self) -> None:
        with_retries(
            self._once,
            self._meter,
            marks=lambda: (self._meter.progress.done,),
            pauses_s=(0.001, 0.002),
            waiting=lambda cut: f"cut ({cut})",
            lost="the transfer was cut",
            remedy="Try again",
        )

    def _once(self) -> None:
        self.tries += 1
        if self.tries in self._progress_at:
            self._meter.move(1)
        if self.tries <= self._interruptions:
            raise PeerLost(f"number {self.tries}")


def test_it_fails_after_several_interruptions_without_progress() -> None:
    transfer = Transfer(interruptions=100, progress_at={1, 4})
    message = rf"the transfer was cut {MAX_FAILURES} times in a row \(number {MAX_FAILURES + 3}\)"
    with pytest.raises(UserError, match=message) as error:
        transfer.run()
    assert error.value.remedy == "Try again"
    assert transfer.tries == MAX_FAILURES + 3  # the fourth made progress, and counts as the first of a new row


def test_retries_continue_while_there_is_progress_and_report_why_they_wait() -> None:
    transfer = Transfer(interruptions=3 * MAX_FAILURES, progress_at=set(range(1, 3 * MAX_FAILURES + 1)))
    transfer.run()
    assert transfer.tries == 3 * MAX_FAILURES + 1
    waited = [progress.waiting for progress in transfer.reports if progress.waiting]
    assert waited == [f"cut (number {number})" for number in range(1, 3 * MAX_FAILURES + 1)]
