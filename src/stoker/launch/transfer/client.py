"""The end where the user sits: connects to the other, and again when it was cut."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from stoker.launch.transfer.frames import Frames, Pipe
from stoker.launch.transfer.meter import Meter, Progress, ignore
from stoker.launch.transfer.patience import patiently
from stoker.launch.transfer.receive import receive
from stoker.launch.transfer.send import Item, send
from stoker.spec.errors import UserError

MODULE = "stoker.launch.transfer"
PAUSES = (0.5, 30.0)  # seconds: the first, the longest


class Place(Protocol):
    """Where the other end runs."""

    root: str
    """The folder there that paths are below."""

    def connect(self, argv: Sequence[str]) -> Pipe:
        """Start `python3 -m …` there. Each call may find another pod: the one before may be gone. Raises Cut."""


def upload(items: Sequence[Item], place: Place, progress: Callable[[Progress], None] = ignore) -> Progress:
    """All of it is there, and was checked, when this returns. What is there already is not sent again."""
    meter = Meter(progress)
    _patiently(place, ["receive", place.root], lambda frames: send(frames, items, meter), meter)
    return meter.progress


def download(
    place: Place, path: str, to: Path, progress: Callable[[Progress], None] = ignore, *, exact: bool = False
) -> Progress:
    """A file or folder from there to a path here; into it, when it is a folder, unless it is `exact`."""
    to = to.absolute()
    root, into = (to, "") if to.is_dir() else (to.parent, to.name)
    if not root.is_dir():
        raise UserError(f"there is no folder {root}", remedy=f"Make it with: mkdir -p {root}")
    meter = Meter(progress)
    ask = ["send", place.root, path]
    _patiently(place, ask, lambda frames: receive(frames, root, meter, into=into, exact=exact), meter)
    return meter.progress


def _patiently(place: Place, ask: list[str], work: Callable[[Frames], None], meter: Meter) -> None:
    def once() -> None:
        pipe = place.connect(["-m", MODULE, *ask])
        try:
            work(Frames(pipe))
        finally:
            pipe.close()

    patiently(
        once,
        meter,
        marks=lambda: (meter.progress.done,),
        pauses=PAUSES,
        waiting=lambda cut: f"cut ({cut}); trying again",
        lost="the transfer was cut",
        remedy="Check the network, then run the same command again: it goes on where it stopped",
    )
