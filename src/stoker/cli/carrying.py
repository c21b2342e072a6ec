"""What a terminal shows while bytes are carried; plain lines where there is no terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from stoker.cli.output import duration, size
from stoker.launch.transfer.meter import Progress

QUIET = 5.0  # seconds between two lines where there is no terminal


@contextmanager
def transferring(doing: str) -> Iterator[Callable[[Progress], None]]:
    """Bytes, files, speed and the time that is left, on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        last = time.monotonic()

        def say(state: Progress) -> None:
            nonlocal last
            if time.monotonic() - last >= QUIET:
                last = time.monotonic()
                print(f"{doing}: {_carried(state)}", file=sys.stderr, flush=True)

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Bars(*columns, console=console, transient=True) as progress:
        task = progress.add_task(doing, total=None, text="")

        def show(state: Progress) -> None:
            progress.update(task, completed=state.done, total=state.total or None, text=_carried(state))

        yield show


def _carried(state: Progress) -> str:
    if state.waiting:
        return state.waiting
    parts = [f"{size(state.done)} of {size(state.total)}" if state.total else size(state.done)]
    if state.of_files > 1:
        parts.append(f"{state.files:,} of {state.of_files:,} files")
    if state.there:
        parts.append(f"{size(state.there)} were there")
    if state.rate:
        parts.append(f"{size(state.rate)}/s")
    if state.seconds_left is not None:
        parts.append(f"{duration(state.seconds_left)} left")
    return ", ".join(parts)
