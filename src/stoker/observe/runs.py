"""Runs as a reader sees them: which there are, and where each of them stands."""

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, Literal, Protocol, cast

from stoker.rundir import Exit, Record, RunDir
from stoker.rundir.files import open_regular
from stoker.rundir.records import RECORD_BYTES, Count, Seconds, Workers, is_event, parse_line
from stoker.spec import contract
from stoker.spec.errors import StokerError, UserError
from stoker.storage.mirror import in_words, run_dir, run_path, runs_in

State = Literal["running", "done", "paused", "failed", "interrupted", "waiting", "restarting", "stopping", "unknown"]
ELSEWHERE = {"kubernetes": "stoker.observe.cluster"}
"""What reads runs that do not live here; heavy, so by name."""
SLOWEST = 1e-6  # tokens per second that the time left is reckoned from
RECENT = 10  # logged steps that the time left is reckoned from


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """A run as a line of a list: only the ends of its files are read for it."""

    name: str
    folder: str
    state: State
    """`interrupted`: nobody runs it and nobody had time to say why. The last four are of runs in a cluster."""
    reason: str
    remedy: str
    step: Count
    steps: Count | None
    """None when only a time ends the run, or it has never started."""
    loss: float | None
    tokens: int | None
    tokens_per_second: float | None
    seconds_left: float | None
    """While it runs."""
    workers: Workers | None
    updated: Seconds | None
    """When something was last written down, in seconds since 1970."""
    skipped: Count = 0
    """Records that could not be read, among those that were looked at."""
    unread: str = ""
    """Why its newest records could not be read, of a run in a cluster: step and loss are the last that were seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView(RunRow):
    """All there is to say of one run."""

    val_loss: float | None
    checkpoint: Count | None
    """Step of the newest whole checkpoint."""
    restarts: Count
    nodes: list[Record]
    """Of a run over several: the ranks of each, as it was last started."""


def rows(runs: list[RunDir]) -> list[RunRow]:
    """Those of one cluster are asked for together."""
    away: dict[str, list[RunDir]] = {}
    known: dict[Path, RunRow] = {}
    for run in runs:
        try:
            if place := run.place_ref():
                away.setdefault(place.kind, []).append(run)
            else:
                known[run.path] = row(run)
        except (StokerError, OSError) as e:  # one run's damage is not the others'
            known[run.path] = _unreadable(run, e)
    for kind, some in away.items():
        known |= {Path(one.folder): one for one in _elsewhere(kind).rows(some)}
    return [known[run.path] for run in runs]


def view_anywhere(run: RunDir) -> RunView:
    place = run.place_ref()
    return _elsewhere(place.kind).view(run) if place else view(run)


class _Elsewhere(Protocol):
    def rows(self, runs: list[RunDir]) -> list[RunRow]: ...

    def view(self, run: RunDir) -> RunView: ...


def _elsewhere(kind: str) -> _Elsewhere:
    return cast(_Elsewhere, importlib.import_module(ELSEWHERE[kind]))


def row(run: RunDir) -> RunRow:
    running = run.holder() is not None
    exit = run.exit()  # after the look at the lock: a run writes it before it lets go
    recent = list(islice(run.metrics_backwards(), RECENT))
    event = next(run.events_backwards(), {})
    logged, happened = _newest(recent[:1], "time"), _newest([event], "time")
    of = _last_attempt(run)
    step = max(_newest(recent, "step") or 0, (exit.step or 0) if exit else 0)
    if of["resumed"].get("time", 0) > (logged or 0):
        step = of["resumed"].get("step", step)
    state, reason, remedy = _ending(run, exit, running=running)
    return RunRow(
        name=run.name,
        folder=str(run.path),
        state=state,
        reason=reason,
        remedy=remedy,
        step=step,
        steps=of["started"].get("steps"),
        loss=_newest(recent, "loss"),
        tokens=_newest(recent[:1], "tokens"),
        tokens_per_second=_newest(recent, "tokens_per_second"),
        seconds_left=seconds_left(of["started"], recent, step) if running else None,
        workers=of["world"].get("workers"),
        updated=max(logged or 0, happened or 0) or None,
        skipped=run.skipped.total(),
    )


def _ending(run: RunDir, exit: Exit | None, *, running: bool) -> tuple[State, str, str]:
    """State, reason and remedy."""
    if running:
        return "running", "", ""
    if exit:
        return exit.state, exit.reason, exit.remedy
    if run.skipped[contract.EXIT_FILE]:
        damaged = f"{contract.EXIT_FILE} is damaged, so how the run ended is not known"
        return "unknown", damaged, f"Remove {run.path / contract.EXIT_FILE}, and resume the run"
    return "interrupted", "", ""


def _unreadable(run: RunDir, error: StokerError | OSError) -> RunRow:
    if isinstance(error, StokerError):
        problem, remedy = error.problem, error.remedy
    else:
        problem, remedy = f"{error.filename or run.path}: {error.strerror or error}", ""
    return RunRow(
        name=run.name,
        folder=str(run.path),
        state="unknown",
        reason=problem,
        remedy=remedy,
        step=0,
        steps=None,
        loss=None,
        tokens=None,
        tokens_per_second=None,
        seconds_left=None,
        workers=None,
        updated=None,
        skipped=1,
    )


def view(run: RunDir) -> RunView:
    now = row(run)
    evaluated = next(run.metrics_backwards(b'"val_loss"'), {})
    restarts = sum(event["kind"] == "failed" and event.get("again", False) for event in run.events())
    return RunView(
        **asdict(now) | {"skipped": run.skipped.total()},
        val_loss=_newest([evaluated], "val_loss"),
        checkpoint=max((saved.step for saved in run.saved()), default=None),
        restarts=restarts,
        nodes=_last_attempt(run)["world"].get("nodes", []),
    )


def seconds_left(started: Record, recent: Iterable[Record], step: int) -> float | None:
    """From the mean time of a token in the recent records: one slow step is not the future."""
    steps = started.get("steps")
    speeds = [record["tokens_per_second"] for record in recent if (record.get("tokens_per_second") or 0) > SLOWEST]
    if not steps or not speeds or "tokens_per_step" not in started:
        return None
    return float(max(0, steps - step) * started["tokens_per_step"] / harmonic_mean(speeds))


def all_runs(folder: Path) -> list[RunDir]:
    """Oldest first."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder", remedy="Name the folder that holds the runs: --runs FOLDER")
    return sorted(runs_in(folder), key=_began)


def is_path(word: str) -> bool:
    """It is written as a path: a run of that name elsewhere is not meant."""
    return word.startswith(("./", "../"))


def find(word: str, folder: Path) -> RunDir:
    """A run by its folder, or by its name under `folder`."""
    places = (folder / word, run_path(word))
    for path in reversed(places) if is_path(word) else places:
        run = run_dir(path)
        if run.exists():
            return run
    names = [run.name for run in all_runs(folder)]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.4)
    if near:
        remedy = f"Did you mean {near[0]}?"
    elif names:
        remedy = f"There are: {', '.join(names[-5:])}"
    else:
        remedy = "Start one with: stoker train RUN.yaml, or say where runs are with --runs DIR"
    raise UserError(f"there is no run '{word}' in {in_words(folder)}", remedy=remedy)


def _newest(records: list[Record], key: str) -> Any:
    """What was last told, of records newest first: a script tells its loss and its speed in lines of their own."""
    value = next((record[key] for record in records if key in record), None)
    return value if isinstance(value, (int, float)) else None


def _last_attempt(run: RunDir) -> dict[str, Record]:
    """The last event of each kind that tells where it stands; what a run wrote before it last started is not read."""
    found: dict[str, Record] = {"world": {}, "started": {}, "resumed": {}}
    marks = [f'"kind": "{kind}"'.encode() for kind in found]
    for event in run.events_backwards(*marks):
        if not found.get(event["kind"], event):
            found[event["kind"]] = event
        if found["world"] and found["started"]:
            break
    return found


def _began(run: RunDir) -> float:
    """When it first started: a run that goes on with a changed spec writes spec.yaml again."""
    try:
        with open_regular(run.path / contract.EVENTS_FILE) as file:
            first = parse_line(file.readline(RECORD_BYTES + 1))
        if is_event(first):
            return float(first["time"])
    except (OSError, ValueError):
        pass  # it has not started yet
    try:
        return (run.path / contract.SPEC_FILE).stat().st_mtime
    except OSError:
        return 0.0  # somebody deletes it right now
