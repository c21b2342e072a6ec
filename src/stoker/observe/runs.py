"""Runs as a reader sees them: which there are, and where each of them stands."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean
from typing import Literal

from stoker.rundir import Record, RunDir, read_lines
from stoker.spec import contract
from stoker.spec.errors import UserError

State = Literal["running", "done", "paused", "failed", "interrupted"]
RECENT = 10  # logged steps that the time left is reckoned from


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    name: str
    folder: str
    state: State
    """`interrupted`: nobody runs it and nobody had time to say why."""
    reason: str
    remedy: str
    step: int
    steps: int | None
    """None when only a time ends the run, or it has never started."""
    loss: float | None
    val_loss: float | None
    tokens: int | None
    tokens_per_second: float | None
    seconds_left: float | None
    """While it runs."""
    checkpoint: int | None
    """Step of the newest whole checkpoint."""
    restarts: int
    workers: int | None
    updated: float | None
    """When something was last written down, in seconds since 1970."""


def view(run: RunDir) -> RunView:
    events, records = run.events(), list(read_lines(run.path / contract.METRICS_FILE))
    exit = run.exit()
    running = run.holder() is not None
    state: State = "running" if running else exit.state if exit else "interrupted"
    last = records[-1] if records else {}
    started = _last(events, "started")
    resumed = _last(events, "resumed")
    step = max(last.get("step", 0), (exit.step or 0) if exit else 0)
    if resumed and resumed["time"] > last.get("time", 0):
        step = resumed["step"]
    return RunView(
        name=run.name,
        folder=str(run.path),
        state=state,
        reason=exit.reason if exit and not running else "",
        remedy=exit.remedy if exit and not running else "",
        step=step,
        steps=started.get("steps"),
        loss=last.get("loss"),
        val_loss=next((record["val_loss"] for record in reversed(records) if "val_loss" in record), None),
        tokens=last.get("tokens"),
        tokens_per_second=last.get("tokens_per_second"),
        seconds_left=seconds_left(started, records[-RECENT:], step) if running else None,
        checkpoint=max((saved.step for saved in run.saved()), default=None),
        restarts=sum(event["kind"] == "failed" and event.get("again", False) for event in events),
        workers=_last(events, "world").get("workers"),
        updated=max((one["time"] for one in (*events[-1:], *records[-1:])), default=None),
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
    found = [RunDir(path.parent) for path in folder.glob(f"*/{contract.SPEC_FILE}")]
    return sorted(found, key=lambda run: (run.path / contract.DATA_FILE).stat().st_mtime)


def find(word: str, folder: Path) -> RunDir:
    """A run by its folder, or by its name under `folder`."""
    for path in (folder / word, Path(word)):
        if RunDir(path).exists():
            return RunDir(path)
    names = [run.name for run in all_runs(folder)]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.4)
    if near:
        remedy = f"Did you mean {near[0]}?"
    elif names:
        remedy = f"There are: {', '.join(names[-5:])}"
    else:
        remedy = "Start one with: stoker train RUN.yaml, or say where runs are with --runs DIR"
    raise UserError(f"there is no run '{word}' in {folder.absolute()}", remedy=remedy)


def _last(events: list[Record], kind: str) -> Record:
    return next((event for event in reversed(events) if event["kind"] == kind), {})
