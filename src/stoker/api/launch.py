"""Launches a run on any backend: plan, prepare the data, upload what it needs, submit.

`plan` changes nothing: it is the first half of every launch, and all of a dry run. CLI, TorchX and Python call both.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker import backends
from stoker.api.opening import Opened, OpenedTraining, begin
from stoker.api.source_models import known_vocab, resolved, teacher_shape
from stoker.backends import secrets
from stoker.backends.backend import Backend, Facts, Message, Running, Submission, Unavailable
from stoker.backends.backend import Listener as BackendListener
from stoker.backends.transfer.meter import TransferProgress
from stoker.data.prepare import PrepareProgress as Prepared
from stoker.rundir import Exit, RunDir
from stoker.spec.run import AnySpec, RunSpec

POLL_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What will be launched. Nothing has been created."""

    spec: AnySpec
    run: RunDir
    backend: Backend
    facts: Facts
    submission: Submission
    warnings: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    run: RunDir
    spec: AnySpec
    submission: Submission
    running: Running | None = None
    """None when there was nothing to do, or with `submit=False`."""
    done: Exit | None = None
    """How the run ended earlier, when it is done already."""
    steps: int | None = None
    """Planned; None for a script, or when only `until.time` ends the run."""


class LaunchListener(BackendListener, Protocol):
    """Receives the progress of a launch."""

    def preparing(self, progress: Prepared) -> None: ...

    def prepared(self, opened: Opened) -> None:
        """The data is prepared and the run directory exists."""


class NullListener:
    """Ignores all progress."""

    def preparing(self, progress: Prepared) -> None: ...

    def prepared(self, opened: Opened) -> None: ...

    def building(self, phase: str, done: int, total: int) -> None: ...

    def uploading(self, progress: TransferProgress) -> None: ...

    def committed(self) -> None: ...


def plan(spec: AnySpec, *, runs: Path, message: Message = lambda _: None, offline: bool = False) -> Plan:
    """Raises UserError for everything that is known to fail.

    `message` receives a line when something has to be waited for, in this function and in `launch`. `offline`: a
    cluster that cannot be reached is no error, and the plan is made without looking at it.
    """
    spec = resolved(spec, runs=runs)
    secrets.resolve(spec)  # a missing secret is reported before anything is created
    run = RunDir(runs / spec.name)
    backend = backends.backend_for(spec.on, message)
    warnings: list[str] = []
    try:
        facts = backend.discover()
    except Unavailable as e:
        if not offline:
            raise
        facts = backend.assumed()
        warnings.append(f"not checked: {e.problem}")
    if isinstance(spec, RunSpec):
        model = spec.model.model_copy(update={"vocab": spec.model.vocab or known_vocab(spec.data)})
        with_vocab = spec.model_copy(update={"model": model})
        submission = backend.plan(with_vocab, facts, run.path, teacher=teacher_shape(spec, run))
    else:
        submission = backend.plan(spec, facts, run.path)
    warnings += backend.check(spec, facts, submission)
    return Plan(spec=spec, run=run, backend=backend, facts=facts, submission=submission, warnings=warnings)


def launch(
    plan: Plan, *, listener: LaunchListener | None = None, detached: bool = True, submit: bool = True
) -> Launched:
    """Start the run, or resume it. A detached run outlives this process; any other ends with it.

    A new run whose launch fails or is interrupted, for example because its image cannot be pulled, leaves nothing
    behind; a run of that name that another command has created meanwhile is kept. With `submit=False` everything is
    uploaded but the run is not started: TorchX does that.
    """
    run, tracker = plan.run, _Tracker(listener or NullListener())
    existed = run.path.exists()
    try:
        progress = tracker.listener.preparing
        opened = begin(plan.spec, runs=run.path.parent, progress=progress, creating=tracker.creating)
        if opened.done:
            return Launched(run=run, spec=opened.spec, submission=plan.submission, done=opened.done)
        tracker.listener.prepared(opened)
        submission = plan.backend.stage(plan.submission, opened.spec, plan.facts, tracker)
        running = plan.backend.submit(submission, detached=detached) if submit else None
        steps = opened.derived.steps if isinstance(opened, OpenedTraining) else None
        return Launched(run=run, spec=opened.spec, submission=submission, running=running, steps=steps)
    except BaseException:
        if tracker.is_created and not existed and not tracker.is_committed:
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def await_start(run: RunDir, running: Running) -> int | None:
    """Wait until the supervisor holds the run. Its exit code if it ended before that was seen, else None."""
    while not running.has_started(run):
        code = running.poll()
        if code is not None:
            return code
        time.sleep(POLL_S)
    return None


def follow(running: Running, look: Callable[[], None] = lambda: None) -> int:
    """Wait until the run has ended, and call `look` repeatedly. If this is interrupted, the run saves and stops."""
    try:
        while True:
            code = running.poll()
            look()  # after the poll, so that everything that was written before the end is seen
            if code is not None:
                return code
            time.sleep(4 * POLL_S)
    finally:
        if running.poll() is None:
            running.stop()
        while running.poll() is None:
            time.sleep(4 * POLL_S)


class _Tracker:
    """Forwards the backend's progress, and remembers whether this launch has created the run or something elsewhere."""

    def __init__(self, listener: LaunchListener) -> None:
        self.listener, self.is_created, self.is_committed = listener, False, False

    def creating(self) -> None:
        self.is_created = True

    def building(self, phase: str, done: int, total: int) -> None:
        self.listener.building(phase, done, total)

    def uploading(self, progress: TransferProgress) -> None:
        self.listener.uploading(progress)

    def committed(self) -> None:
        self.is_committed = True
        self.listener.committed()
