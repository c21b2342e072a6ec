"""Progress of copying files to and from a run's volume."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from stoker.backends.transfer.meter import TransferProgress
from stoker.cli.console import SafeConsole
from stoker.cli.output import size
from stoker.cli.progress.lines import OccasionalLines, is_live
from stoker.spec.units import short_duration


@contextmanager
def show_transfer(title: str) -> Iterator[Callable[[TransferProgress], None]]:
    """Bytes, files, speed and the time left, on stderr."""
    console = SafeConsole(stderr=True)
    if not is_live(console):
        lines = OccasionalLines()
        yield lambda state: lines(f"{title}: {_text(state)}")
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task(title, total=None, text="")

        def show(state: TransferProgress) -> None:
            bars.update(task, completed=state.done, total=state.total or None, text=_text(state))

        yield show


def _text(state: TransferProgress) -> str:
    if state.waiting:
        return state.waiting
    parts = [f"{size(state.done)} of {size(state.total)}" if state.total else size(state.done)]
    if state.of_files > 1:
        parts.append(f"{state.files:,} of {state.of_files:,} files")
    if state.present:
        parts.append(f"{size(state.present)} copied before")
    if state.rate:
        parts.append(f"{size(state.rate)}/s")
    if state.seconds_left is not None:
        parts.append(f"{short_duration(state.seconds_left)} left")
    return ", ".join(parts)
