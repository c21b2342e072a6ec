"""What a terminal shows while bytes are carried; plain lines where there is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from stoker.cli.console import SafeConsole
from stoker.cli.output import duration, size
from stoker.cli.quiet import is_live, seldom
from stoker.launch.transfer.meter import Progress


@contextmanager
def transferring(doing: str) -> Iterator[Callable[[Progress], None]]:
    """Bytes, files, speed and the time that is left, on stderr."""
    console = SafeConsole(stderr=True)
    if not is_live(console):
        say = seldom(doing)
        yield lambda state: say(_carried(state))
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
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
