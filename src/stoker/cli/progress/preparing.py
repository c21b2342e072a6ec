"""Progress of turning text into tokens."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from stoker.cli.console import SafeConsole
from stoker.cli.output import size
from stoker.cli.progress.lines import LINE_EVERY_S, is_live
from stoker.data import prepare
from stoker.spec.units import short_number

PHASES = {
    "collecting": "collecting texts",
    "reading": "reading data",
    "waiting": "waiting for another stoker process that prepares the same data",
    "tokenizer": "training the tokenizer",
    "tokens": "tokenizing",
}


@contextmanager
def show_preparing() -> Iterator[Callable[[prepare.PrepareProgress], None]]:
    """A bar for each phase."""
    console = SafeConsole()
    if not is_live(console):
        yield _PreparingLines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def show(state: prepare.PrepareProgress) -> None:
            if state.phase not in tasks:
                for task in tasks.values():  # fill the bars of earlier phases whose total was not known
                    bars.update(task, total=bars.tasks[task].completed)
                tasks[state.phase] = bars.add_task(PHASES[state.phase], total=None, text="")
            bars.update(tasks[state.phase], completed=state.done, total=state.total or None, text=_text(state))

        yield show


class _PreparingLines:
    """A line for each phase, and every few seconds within it."""

    def __init__(self) -> None:
        self._phase = ""
        self._next = 0.0

    def __call__(self, state: prepare.PrepareProgress) -> None:
        if state.phase == self._phase and time.monotonic() < self._next:
            return
        self._phase, self._next = state.phase, time.monotonic() + LINE_EVERY_S
        print(f"{PHASES[state.phase]}: {_text(state)}", flush=True)


def _text(state: prepare.PrepareProgress) -> str:
    text = f"{size(state.done)} of {size(state.total)}" if state.total else size(state.done)
    text += f", {size(state.fetched)} downloaded" if state.fetched else ""
    return f"{text}, {short_number(state.tokens)} tokens" if state.tokens else text
