"""Progress of training: a bar in a terminal, otherwise a line every few seconds."""

import time
from types import TracebackType
from typing import Protocol, Self

from rich.progress import BarColumn, Progress, TextColumn

from stoker.cli.console import SafeConsole
from stoker.cli.output import measured
from stoker.cli.progress.lines import LINE_EVERY_S, is_live
from stoker.rundir import Record
from stoker.spec.units import short_duration, short_number


class TrainingDisplay(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def note(self, text: str) -> None:
        """Print a line that stays."""

    def step(self, record: Record, *, left: float | None) -> None:
        """Show a logged step, and the seconds that are left."""


def training_display(*, steps: int | None, step: int) -> TrainingDisplay:
    console = SafeConsole()
    return TrainingBar(console, steps=steps, step=step) if is_live(console) else TrainingLines(steps=steps)


class TrainingBar:
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


class TrainingLines:
    def __init__(self, *, steps: int | None) -> None:
        self._steps = steps
        self._next = 0.0
        self._held = ""
        """The newest line, until it is time to print it."""

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
            self._next = time.monotonic() + LINE_EVERY_S


def _figures(record: Record, left: float | None) -> str:
    parts = [f"loss {measured(record['loss'])}"] if "loss" in record else []
    if "val_loss" in record:
        parts.append(f"val {measured(record['val_loss'])}")
    if record.get("tokens_per_second"):
        parts.append(f"{short_number(record['tokens_per_second'])} tokens/s")
    if left is not None:
        parts.append(f"{short_duration(left)} left")
    return "  ".join(parts)
