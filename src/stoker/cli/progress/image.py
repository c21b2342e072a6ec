"""Progress of building and pushing an image."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from stoker.cli import output
from stoker.cli.console import SafeConsole
from stoker.cli.progress.lines import OccasionalLines, is_live

PHASES = {
    "base": "inspecting the base image",
    "packages": "downloading packages",
    "push": "pushing",
    "pull": "pulling the base image",
    "unpack": "unpacking",
}


@contextmanager
def show_image_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each phase, on stderr. Call it with the phase, how much is done, and of how much."""
    console = SafeConsole(stderr=True)
    if not is_live(console):
        lines = OccasionalLines()
        yield lambda phase, done, total: lines(f"{PHASES[phase]}: {_amount(phase, done, total)}")
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(PHASES[phase], total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield show


def _amount(phase: str, done: int, total: int) -> str:
    return f"{done} of {total}" if phase == "packages" else f"{output.size(done)} of {output.size(total)}"
