"""The state of a run by its own records: a row of a table, or everything about one run."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from statistics import harmonic_mean
from typing import Any

from stoker.rundir.directory import Exit, RunDir
from stoker.rundir.events import Failed, Resumed, Started, World
from stoker.rundir.logs import last_lines
from stoker.rundir.records import Count, Record, Seconds, Workers
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.errors import StokerError, UserError

MIN_SPEED = 1e-6  # tokens per second; slower records do not count
RECENT = 10  # logged steps from which the remaining time is computed


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """A run as a row of a table: only the ends of its files are read for it."""

    name: str
    folder: str
    state: RunState
    reason: str
    remedy: str
    step: Count
    steps: Count | None
    """None when only a time limit ends the run, or it has never started."""
    loss: float | None
    tokens: int | None
    tokens_per_second: float | None
    seconds_left: float | None
    """While it runs."""
    workers: Workers | None
    updated: Seconds | None
    """When something was last recorded, in seconds since 1970."""
    skipped: Count = 0
    """Records that could not be read, among those that were checked."""
    unread: str = ""
    """Why the newest records of a run in a cluster could not be read: step and loss are the last known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView(RunRow):
    """Everything about one run."""

    val_loss: float | None
    checkpoint: Count | None
    """Step of the newest complete checkpoint."""
    restarts: Count
    nodes: list[Record]
    """For a run on several nodes: the ranks of each, in the last attempt."""


def row(run: RunDir) -> RunRow:
    running = run.holder() is not None
    exit = run.exit()  # after the lock was checked: a run writes it before it releases the lock
    recent = list(islice(run.metrics_backwards(), RECENT))
    event = next(run.events_backwards(), None)
    logged = _newest(recent[:1], "time") or 0.0
    last = _last_attempt(run)
    step = max(_newest(recent, "step") or 0, (exit.step or 0) if exit else 0)
    if last.resumed and last.resumed.time > logged:
        step = last.resumed.step
    state, reason, remedy = _ending(run, exit, running=running)
    return RunRow(
        name=run.name,
        folder=str(run.path),
        state=state,
        reason=reason,
        remedy=remedy,
        step=step,
        steps=last.started.steps if last.started else None,
        loss=_newest(recent, "loss"),
        tokens=_newest(recent[:1], "tokens"),
        tokens_per_second=_newest(recent, "tokens_per_second"),
        seconds_left=seconds_left(last.started, recent, step) if running else None,
        workers=last.world.workers if last.world else None,
        updated=max(logged, event.time if event else 0.0) or None,
        skipped=run.skipped.total(),
    )


def _ending(run: RunDir, exit: Exit | None, *, running: bool) -> tuple[RunState, str, str]:
    """State, reason and remedy."""
    if running:
        return RunState.RUNNING, "", ""
    if exit:
        return exit.state, exit.reason, exit.remedy
    if run.skipped[contract.EXIT_FILE]:
        damaged = f"{contract.EXIT_FILE} is damaged, so how the run ended is not known"
        return RunState.UNKNOWN, damaged, f"Remove {run.path / contract.EXIT_FILE}, and resume the run"
    return RunState.INTERRUPTED, "", ""


def unreadable(run: RunDir, error: StokerError | OSError) -> RunRow:
    if isinstance(error, StokerError):
        problem, remedy = error.problem, error.remedy
    else:
        problem, remedy = f"{error.filename or run.path}: {error.strerror or error}", ""
    return replace(_blank(run, RunState.UNKNOWN), reason=problem, remedy=remedy, skipped=1)


def without_records(run: RunDir) -> RunView:
    return RunView(**asdict(_blank(run, RunState.INTERRUPTED)), val_loss=None, checkpoint=None, restarts=0, nodes=[])


def _blank(run: RunDir, state: RunState) -> RunRow:
    return RunRow(
        name=run.name,
        folder=str(run.path),
        state=state,
        reason="",
        remedy="",
        step=0,
        steps=None,
        loss=None,
        tokens=None,
        tokens_per_second=None,
        seconds_left=None,
        workers=None,
        updated=None,
    )


def view(run: RunDir) -> RunView:
    now = row(run)
    evaluated = next(run.metrics_backwards(b'"val_loss"'), {})
    world = _last_attempt(run).world
    return RunView(
        **asdict(now) | {"skipped": run.skipped.total()},
        val_loss=_newest([evaluated], "val_loss"),
        checkpoint=max((saved.step for saved in run.saved()), default=None),
        restarts=sum(isinstance(event, Failed) and event.again for event in run.events()),
        nodes=world.nodes if world else [],
    )


def how_it_ended(run: RunDir, code: int) -> Exit:
    """By its exit.json, or, where it could not write one, by the exit code of its supervisor."""
    run.check_present()
    exit = run.exit()
    if exit is not None and exit.code == code:
        return exit
    step = max((saved.step for saved in run.saved()), default=None)
    if code == contract.EXIT_SAVED:  # without exit.json: there was no room for it
        last = "there is no checkpoint" if step is None else f"the last checkpoint is of step {step}"
        reason = f"the run could not record how it ended; {last}"
        remedy = "Make room on its disk, then run the same command again"
        return Exit(state=RunState.PAUSED, code=code, step=step, reason=reason, remedy=remedy)
    log = run.path / contract.LOGS_DIR / contract.SUPERVISOR_LOG
    message = " ".join(last_lines(log, 1)).removeprefix("stoker: ")
    if code == contract.EXIT_USER:
        raise UserError(message, remedy="")
    return Exit(
        state=RunState.FAILED,
        code=contract.EXIT_FAILED,
        step=step,
        reason=f"the supervisor ended with code {code}",
        remedy=f"Its log is {log}; the same stoker train command resumes it",
    )


def seconds_left(started: Started | None, recent: Iterable[Record], step: int) -> float | None:
    """From the mean time of a token in the recent records, so that one slow step does not count for much."""
    speeds = [record["tokens_per_second"] for record in recent if (record.get("tokens_per_second") or 0) > MIN_SPEED]
    if started is None or not started.steps or not started.tokens_per_step or not speeds:
        return None
    return float(max(0, started.steps - step) * started.tokens_per_step / harmonic_mean(speeds))


def _newest(records: list[Record], key: str) -> Any:
    """The newest value, from records newest first. A script prints its loss and its speed in separate lines."""
    value = next((record[key] for record in records if key in record), None)
    return value if isinstance(value, (int, float)) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attempt:
    world: World | None = None
    started: Started | None = None
    resumed: Resumed | None = None


def _last_attempt(run: RunDir) -> _Attempt:
    """The newest event of each kind. Events before the last start are not read."""
    last = _Attempt()
    for event in run.events_backwards(World, Started, Resumed):
        if isinstance(event, World):
            last = replace(last, world=last.world or event)
        elif isinstance(event, Started):
            last = replace(last, started=last.started or event)
        elif isinstance(event, Resumed):
            last = replace(last, resumed=last.resumed or event)
        if last.world and last.started:
            break
    return last
