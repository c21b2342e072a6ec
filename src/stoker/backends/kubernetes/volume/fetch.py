"""From a bucket to the volume of a run, downloaded by a pod: only its progress comes to this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stoker.backends.kubernetes.volume.execution import Execution, check
from stoker.backends.transfer.meter import TransferMeter, TransferProgress
from stoker.backends.transfer.retry import with_retries

T = TypeVar("T")


class FetchEndpoint(Protocol):
    root: str

    def connect(self, argv: Sequence[str]) -> Execution: ...

    def parse_reply(self, kind: type[T], text: str) -> T: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchReport:
    """A line that MODULE prints in the pod."""

    file: str
    phase: str
    done: int
    total: int


MODULE = "stoker.data.remote.download"
PAUSE_S = 1.0  # before another pod is tried


def fetch(
    remote: FetchEndpoint, url: str, into: str, options: Sequence[str], progress: Callable[[TransferProgress], None]
) -> TransferProgress:
    """The object, or all below it, into a folder of the volume; if the pod is lost, another continues."""
    meter = TransferMeter(progress)
    with_retries(
        lambda: _once(remote, [url, f"{remote.root}/{into}", *options], meter),
        meter,
        marks=lambda: (meter.progress.done, meter.moved),  # of the current file, and of all files
        pauses_s=(PAUSE_S, PAUSE_S),
        waiting=lambda error: f"the pod is lost ({error}); another continues",
        lost=f"{url} could not be fetched: its pod was lost",
        remedy="Run the same command again: it resumes where it stopped",
    )
    return meter.progress


def _once(remote: FetchEndpoint, argv: Sequence[str], meter: TransferMeter) -> None:
    command = remote.connect(["-m", MODULE, *argv])
    file, phase, done = "", "", 0
    try:
        for line in command.lines():
            report = remote.parse_reply(FetchReport, line)
            if (file, phase) != (report.file, report.phase):
                file, phase = report.file, report.phase
                meter.begin(total=report.total, files=1, present=report.done, files_present=0)
            else:
                meter.move(report.done - done)
            done = report.done
            if phase in ("done", "there"):
                meter.file()
    finally:
        command.close()
    check(command, "cp")
    meter.end()
