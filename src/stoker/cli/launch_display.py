"""What `train` and `launch` print: the plan, the progress of a launch, and that the run has started."""

import json
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from stoker.api.launch import NullListener, Plan
from stoker.api.opening import Opened, OpenedTraining
from stoker.backends.backend import Running
from stoker.backends.kubernetes import manifest
from stoker.backends.transfer.meter import TransferProgress
from stoker.cli import output, summary
from stoker.cli.interrupts import Interrupts
from stoker.cli.progress.image import show_image_progress
from stoker.cli.progress.preparing import show_preparing
from stoker.cli.progress.transfer import show_transfer
from stoker.data.prepare import PrepareProgress as Prepared
from stoker.rundir import Record, RunDir
from stoker.rundir.commands import command_name
from stoker.storage.mirror import run_dir


class JsonListener(NullListener):
    """For --json: shows nothing. Once something was created, an interrupt is held until it has been reported."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def committed(self) -> None:
        self._interrupts.hold()


class ProgressListener(JsonListener):
    """Shows a progress display for each phase, one after the other."""

    def __init__(self, interrupts: Interrupts) -> None:
        super().__init__(interrupts)
        self._display: AbstractContextManager[Any] | None = None
        self._phase = ""
        self._update: Callable[..., None] = lambda *_: None

    def __exit__(self, *_: object) -> None:
        self._close()

    def preparing(self, progress: Prepared) -> None:
        self._open("preparing", show_preparing)(progress)

    def prepared(self, opened: Opened) -> None:
        self._close()
        if isinstance(opened, OpenedTraining):
            print(output.pairs(summary.goal(opened)), flush=True)

    def building(self, phase: str, done: int, total: int) -> None:
        self._open("building", show_image_progress)(phase, done, total)

    def uploading(self, progress: TransferProgress) -> None:
        self._open("uploading", lambda: show_transfer("uploading"))(progress)

    def committed(self) -> None:
        self._close()
        super().committed()

    def _open(self, phase: str, display: Callable[[], AbstractContextManager[Any]]) -> Callable[..., None]:
        if self._phase != phase:
            self._close()
            self._phase, self._display = phase, display()
            self._update = self._display.__enter__()
        return self._update

    def _close(self) -> None:
        display, self._display, self._phase = self._display, None, ""
        if display is not None:
            display.__exit__(None, None, None)


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    return [
        *summary.plan(plan.spec, plan.submission, run_dir(plan.run.path)),
        *plan.backend.describe(plan.spec, plan.facts, plan.submission),
        *(("warning", text) for text in plan.warnings),
    ]


def dry_run(plan: Plan, *, folder: Path | None, as_json: bool) -> str:
    """What would be submitted: the objects for a cluster, or the command for this machine."""
    submission = plan.submission
    if folder is not None:
        files = [str(path) for path in manifest.write(submission.objects, folder)]
        return launched_json(plan.run, {"files": files}) if as_json else "\n".join(files)
    if submission.objects:
        objects = list(submission.objects)
        return launched_json(plan.run, {"objects": objects}) if as_json else manifest.text(objects).rstrip()
    if not as_json:
        return output.pairs([("command", shlex.join(submission.argv))])
    facts = {"workers": submission.workers, "device": submission.device, "command": submission.argv}
    return launched_json(plan.run, facts)


def started(run: RunDir, running: Running, *, as_json: bool) -> str:
    if as_json:
        return launched_json(run, running.record())
    name = command_name(run)
    rows = [
        ("started", f"{run.name}, {running.where}"),
        ("folder", str(run.path)),
        ("watch", f"stoker status {name}  ·  stoker logs {name} -f  ·  stoker ps --watch"),
        ("stop", f"stoker stop {name}"),
    ]
    return output.pairs(rows)


def launched_json(run: RunDir, facts: Record) -> str:
    return json.dumps({"name": run.name, "folder": str(run.path)} | facts)
