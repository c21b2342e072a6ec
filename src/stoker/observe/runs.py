"""Runs as a reader sees them: which there are, and where each of them stands."""

import difflib
import importlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, Literal, Protocol, cast

from stoker.observe.tail import records_backwards
from stoker.rundir import Record, RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.storage.mirror import in_words, run_dir, run_path, runs_in

State = Literal["running", "done", "paused", "failed", "interrupted", "waiting", "restarting", "stopping", "unknown"]
ELSEWHERE = {"kubernetes": "stoker.observe.cluster"}
"""What reads runs that do not live here; heavy, so by name."""
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
    step: int
    steps: int | None
    """None when only a time ends the run, or it has never started."""
    loss: float | None
    tokens: int | None
    tokens_per_second: float | None
    seconds_left: float | None
    """While it runs."""
    workers: int | None
    updated: float | None
    """When something was last written down, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView(RunRow):
    """All there is to say of one run."""

    val_loss: float | None
    checkpoint: int | None
    """Step of the newest whole checkpoint."""
    restarts: int
    nodes: list[Record]
    """Of a run over several: the ranks of each, as it was last started."""


def rows(runs: list[RunDir]) -> list[RunRow]:
    """Those of one cluster are asked for together."""
    away: dict[str, list[RunDir]] = {}
    for run in runs:
        if place := run.place_ref():
            away.setdefault(place.kind, []).append(run)
    found = {one.folder: one for kind, some in away.items() for one in _elsewhere(kind).rows(some)}
    return [found.get(str(run.path)) or row(run) for run in runs]


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
    recent = list(islice(records_backwards(run.path / contract.METRICS_FILE), RECENT))
    event = next(records_backwards(run.path / contract.EVENTS_FILE), {})
    logged, happened = _newest(recent[:1], "time"), _newest([event], "time")
    of = _last_attempt(run)
    step = max(_newest(recent, "step") or 0, (exit.step or 0) if exit else 0)
    if of["resumed"].get("time", 0) > (logged or 0):
        step = of["resumed"]["step"]
    return RunRow(
        name=run.name,
        folder=str(run.path),
        state="running" if running else exit.state if exit else "interrupted",
        reason=exit.reason if exit and not running else "",
        remedy=exit.remedy if exit and not running else "",
        step=step,
        steps=of["started"].get("steps"),
        loss=_newest(recent, "loss"),
        tokens=_newest(recent[:1], "tokens"),
        tokens_per_second=_newest(recent, "tokens_per_second"),
        seconds_left=seconds_left(of["started"], recent, step) if running else None,
        workers=of["world"].get("workers"),
        updated=max(logged or 0, happened or 0) or None,
    )


def view(run: RunDir) -> RunView:
    evaluated = next(records_backwards(run.path / contract.METRICS_FILE, b'"val_loss"'), {})
    return RunView(
        **asdict(row(run)),
        val_loss=_newest([evaluated], "val_loss"),
        checkpoint=max((saved.step for saved in run.saved()), default=None),
        restarts=sum(event["kind"] == "failed" and event.get("again", False) for event in run.events()),
        nodes=_last_attempt(run)["world"].get("nodes", []),
    )


def seconds_left(started: Record, recent: Iterable[Record], step: int) -> float | None:
    """From the mean time of a token in the recent records: one slow step is not the future."""
    steps = started.get("steps")
    speeds = [record["tokens_per_second"] for record in recent if record.get("tokens_per_second")]
    if not steps or not speeds:
        return None
    return float(max(0, steps - step) * started["tokens_per_step"] / harmonic_mean(speeds))


def all_runs(folder: Path) -> list[RunDir]:
    """Oldest first."""
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
    for event in records_backwards(run.path / contract.EVENTS_FILE, *marks):
        if not found.get(event.get("kind", ""), event):
            found[event["kind"]] = event
        if found["world"] and found["started"]:
            break
    return found


def _began(run: RunDir) -> float:
    """When it first started: a run that goes on with a changed spec writes spec.yaml again."""
    try:
        with open(run.path / contract.EVENTS_FILE, "rb") as file:
            return float(json.loads(file.readline())["time"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it has not started yet
    try:
        return (run.path / contract.SPEC_FILE).stat().st_mtime
    except OSError:
        return 0.0  # somebody deletes it right now
