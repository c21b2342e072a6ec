"""What a terminal shows while data is prepared and a model trains; plain lines where there is no terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from stoker.cli.console import SafeConsole
from stoker.cli.output import duration, measured, number, size
from stoker.cli.quiet import QUIET, is_live, seldom
from stoker.data import prepare
from stoker.rundir import Record

PHASES = {
    "collecting": "collecting texts",
    "reading": "reading data",
    "waiting": "waiting for another stoker that prepares the same data",
    "tokenizer": "training the tokenizer",
    "tokens": "making tokens",
}


class Display(Protocol):
    """Where a run's progress goes."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def note(self, text: str) -> None:
        """A line that stays."""

    def step(self, record: Record, *, left: float | None) -> None:
        """A logged step, and the seconds that are left."""


def display(*, steps: int | None, step: int) -> Display:
    console = _console()
    return Bar(console, steps=steps, step=step) if is_live(console) else Lines(steps=steps)


class Bar:
    def __init__(self, console: SafeConsole, *, steps: int | None, step: int) -> None:
        self._progress = Progress(
            TextColumn("step {task.completed}" + (f"/{steps}" if steps else "")),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
        )
        self._task = self._progress.add_task("", total=steps, completed=step, text="starting")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def step(self, record: Record, *, left: float | None) -> None:
        self._progress.update(self._task, completed=record["step"], text=_figures(record, left))


class Lines:
    def __init__(self, *, steps: int | None) -> None:
        self._steps = steps
        self._next = 0.0
        self._held = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def note(self, text: str) -> None:
        self._release()
        print(text, flush=True)

    def step(self, record: Record, *, left: float | None) -> None:
        of = f"/{self._steps}" if self._steps else ""
        self._held = f"step {record['step']}{of}  {_figures(record, left)}"
        if time.monotonic() >= self._next:
            self._release()

    def _release(self) -> None:
        if self._held:
            print(self._held, flush=True)
            self._held = ""
            self._next = time.monotonic() + QUIET


@contextmanager
def preparing() -> Iterator[Callable[[prepare.Progress], None]]:
    """A bar for each phase."""
    console = _console()
    if not is_live(console):
        yield _PrepareLines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def show(state: prepare.Progress) -> None:
            if state.phase not in tasks:
                for task in tasks.values():  # what had no known end has come to it
                    progress.update(task, total=progress.tasks[task].completed)
                tasks[state.phase] = progress.add_task(PHASES[state.phase], total=None, text="")
            progress.update(tasks[state.phase], completed=state.done, total=state.total or None, text=_prepared(state))

        yield show


@contextmanager
def counting(doing: str, things: str) -> Iterator[Callable[[int, int], None]]:
    """(done, of how many), on stderr: what a verb is asked for goes to stdout alone."""
    console = SafeConsole(stderr=True)
    if not is_live(console):
        say = seldom(doing)
        yield lambda done, total: say(f"{done:,} of {total:,} {things}")
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} " + things),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class _PrepareLines:
    def __init__(self) -> None:
        self._phase = ""
        self._next = 0.0

    def __call__(self, state: prepare.Progress) -> None:
        if state.phase == self._phase and time.monotonic() < self._next:
            return
        self._phase, self._next = state.phase, time.monotonic() + QUIET
        print(f"{PHASES[state.phase]}: {_prepared(state)}", flush=True)


def _prepared(state: prepare.Progress) -> str:
    text = f"{size(state.done)} of {size(state.total)}" if state.total else size(state.done)
    text += f", {size(state.fetched)} fetched" if state.fetched else ""
    return f"{text}, {number(state.tokens)} tokens" if state.tokens else text


def _figures(record: Record, left: float | None) -> str:
    parts = [f"loss {measured(record['loss'])}"] if "loss" in record else []
    if "val_loss" in record:
        parts.append(f"val {measured(record['val_loss'])}")
    if record.get("tokens_per_second"):
        parts.append(f"{number(record['tokens_per_second'])} tokens/s")
    if left is not None:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def _console() -> SafeConsole:
    return SafeConsole()
