"""Progress of work that is counted in items, such as sequences."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn

from stoker.cli.console import SafeConsole
from stoker.cli.progress.lines import OccasionalLines, is_live


@contextmanager
def show_count(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """On stderr. Call it with the number that is done and the total."""
    console = SafeConsole(stderr=True)
    if not is_live(console):
        lines = OccasionalLines()
        yield lambda done, total: lines(f"{title}: {done:,} of {total:,} {unit}")
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} " + unit),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
