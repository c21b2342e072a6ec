"""The end on the user's machine: connects to the other end, and reconnects when the connection breaks."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from stoker.backends.transfer.frames import Frames, Pipe
from stoker.backends.transfer.meter import TransferMeter, TransferProgress, ignore
from stoker.backends.transfer.receive import receive
from stoker.backends.transfer.retry import with_retries
from stoker.backends.transfer.send import Item, send
from stoker.spec.errors import UserError

MODULE = "stoker.backends.transfer"
PAUSES_S = (0.5, 30.0)  # the first and the longest


class Endpoint(Protocol):
    """The machine of the other end."""

    root: str
    """The folder that paths are relative to."""

    def connect(self, argv: Sequence[str]) -> Pipe:
        """Starts `python3 -m …` on the remote side. Each call may use another pod. Raises PeerLost."""


def upload(
    items: Sequence[Item], endpoint: Endpoint, progress: Callable[[TransferProgress], None] = ignore
) -> TransferProgress:
    """Returns when everything has arrived and was verified. Existing data is not sent again."""
    meter = TransferMeter(progress)
    _with_retries(endpoint, ["receive", endpoint.root], lambda frames: send(frames, items, meter), meter)
    return meter.progress


def download(
    endpoint: Endpoint,
    path: str,
    to: Path,
    progress: Callable[[TransferProgress], None] = ignore,
    *,
    exact: bool = False,
) -> TransferProgress:
    """A file or folder to a local path; into it, if that is a folder, unless `exact`."""
    to = to.absolute()
    root, into = (to, "") if to.is_dir() else (to.parent, to.name)
    if not root.is_dir():
        raise UserError(f"there is no folder {root}", remedy=f"Create it with: mkdir -p {root}")
    meter = TransferMeter(progress)
    command = ["send", endpoint.root, path]
    _with_retries(endpoint, command, lambda frames: receive(frames, root, meter, into=into, exact=exact), meter)
    return meter.progress


def _with_retries(endpoint: Endpoint, command: list[str], work: Callable[[Frames], None], meter: TransferMeter) -> None:
    def once() -> None:
        pipe = endpoint.connect(["-m", MODULE, *command])
        try:
            work(Frames(pipe))
        finally:
            pipe.close()

    with_retries(
        once,
        meter,
        marks=lambda: (meter.progress.done,),
        pauses_s=PAUSES_S,
        waiting=lambda error: f"interrupted ({error}); trying again",
        lost="the transfer was interrupted",
        remedy="Check the network, then run the same command again: it resumes where it stopped",
    )
