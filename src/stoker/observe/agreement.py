"""Whether the other records of a run agree with its ledger: metrics, events, exit.json and the newest checkpoint.

A ledger that was cut short is consistent in itself. That steps are missing shows in what the run wrote elsewhere: the
newest step that any record knows has to be in the ledger, and the ledger has to be the one that the newest checkpoint
was saved with. All this is read before the ledger, as a run that is being written only adds to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stoker.data.ledger import AttemptLedger, Mark
from stoker.rundir import Exit, RunDir, Saved
from stoker.rundir.checkpoint import read_sealed
from stoker.spec import contract

REPORTED = ("checkpoint", "paused", "finished", "skipped")
"""Events whose step was trained."""


class Findings(Protocol):
    steps: int
    unchecked: list[str]

    def complain(self, problem: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Newest:
    """A step that a record knows, and which attempt trained it where that is known."""

    step: int
    where: str
    attempt: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a run says of its progress outside its ledger."""

    exit: Exit | None
    exit_damaged: bool
    steps: list[Newest]
    logged: bool
    """metrics.jsonl has a record."""
    saved: Saved | None
    """The newest checkpoint."""
    damaged: str
    """What is wrong with the manifest of a newer one, or of this; empty when nothing is."""


def gather(run: RunDir) -> Evidence:
    events = run.events()
    exit = run.exit()
    starts = [place for place, event in enumerate(events) if event["kind"] == "started" and "attempt" in event]
    start = events[starts[-1]] if starts else None
    attempt = int(start["attempt"]) if start else None
    steps = [
        Newest(step=event["step"], where=contract.EVENTS_FILE, attempt=attempt)
        for event in (events[starts[-1] :] if starts else [])
        if event["kind"] in REPORTED and "step" in event
    ]
    metrics = run.metrics()
    if metrics:
        steps.append(Newest(step=metrics[-1]["step"], where=contract.METRICS_FILE))
    last = next(run.metrics_backwards(), None)
    if last and start and last.get("time", 0) > start["time"]:
        steps.append(Newest(step=last["step"], where=contract.METRICS_FILE, attempt=attempt))
    saved = max(run.saved(), key=lambda saved: saved.step, default=None)
    return Evidence(
        exit=exit,
        exit_damaged=bool(run.skipped[contract.EXIT_FILE]),
        steps=steps,
        logged=bool(metrics),
        saved=saved,
        damaged=_damaged(run),
    )


def compare(evidence: Evidence, attempts: Sequence[AttemptLedger], drawn: int, result: Findings) -> None:
    """`drawn`: samples of the ledger up to the step of the newest checkpoint."""
    _compare_steps(evidence, attempts, result)
    _compare_exit(evidence, result)
    if evidence.damaged:
        result.complain(evidence.damaged)
    if evidence.saved is None:
        result.unchecked.append("there is no checkpoint that the ledger could be compared with")
        return
    saved, progress = evidence.saved, evidence.saved.manifest.state.progress
    if saved.step > result.steps:
        result.complain(f"the newest checkpoint is of step {saved.step}, and the ledger ends at step {result.steps}")
    elif "drawn" in progress.model_fields_set and progress.drawn != drawn:
        result.complain(
            f"the checkpoint of step {saved.step} was trained on {progress.drawn} samples, and the ledger has {drawn}"
        )
    _compare_marks(saved, attempts, result)


def _compare_steps(evidence: Evidence, attempts: Sequence[AttemptLedger], result: Findings) -> None:
    if result.steps > 1 and not evidence.logged:
        result.complain(f"{contract.METRICS_FILE} has no record of any step")
    ends = {attempt.attempt: attempt.last() for attempt in attempts}
    newest = max(ends.values(), default=0)
    for known in {(one.where, one.attempt): one for one in sorted(evidence.steps, key=lambda one: one.step)}.values():
        end = newest if known.attempt is None else ends.get(known.attempt, 0)
        if known.step > end:
            ledger = "the ledger" if known.attempt is None else f"the ledger of attempt {known.attempt}"
            result.complain(f"{known.where} has step {known.step}, and {ledger} ends at step {end}")


def _compare_exit(evidence: Evidence, result: Findings) -> None:
    if evidence.exit_damaged:
        result.complain(f"{contract.EXIT_FILE} is damaged")
    exit = evidence.exit
    if exit is None or (exit.step is None and exit.state != "done"):
        return
    saved = evidence.saved.step if evidence.saved else None
    agrees = exit.step == result.steps or (exit.state != "done" and exit.step == saved)
    if not agrees:
        result.complain(f"the run ended at step {exit.step}, and the ledger at step {result.steps}")


def _compare_marks(saved: Saved, attempts: Sequence[AttemptLedger], result: Findings) -> None:
    """Each attempt counts up to the step that the next one resumed from, the last up to the checkpoint."""
    if saved.manifest.ledger is None:
        result.unchecked.append(
            f"the checkpoint of step {saved.step} holds no digest of the ledger: an older version of Stoker wrote it"
        )
        return
    marks = {
        int(name.removeprefix("attempt-")): Mark(bytes=mark.bytes, sha256=mark.sha256)
        for name, mark in saved.manifest.ledger.items()
    }
    known = {attempt.attempt: attempt for attempt in attempts}
    numbers = sorted(marks)
    for number, later in zip(numbers, [*numbers[1:], None], strict=True):
        stop = known[later].start if later in known else saved.step
        if number not in known:
            result.complain(
                f"the ledger of attempt {number} is missing: the checkpoint of step {saved.step} rests on it"
            )
        elif known[number].mark(stop) != marks[number]:
            result.complain(
                f"the ledger of attempt {number} is not the one that the checkpoint of step {saved.step} was saved with"
            )
    first = min(numbers, default=0)
    if before := [number for number in known if number < first and known[number].start < known[first].start]:
        result.unchecked.append(f"attempts up to {max(before)} have no digest in a checkpoint")


def _damaged(run: RunDir) -> str:
    for folder in sorted(run.checkpoints.glob(contract.CHECKPOINT_GLOB), reverse=True):
        try:
            manifest = read_sealed(folder)
        except FileNotFoundError:  # a save that was cut off
            continue
        except (OSError, ValueError) as e:
            return f"the manifest of the newest checkpoint is damaged: {folder.name}: {e}"
        if manifest.state.progress.step != manifest.step or folder != run.checkpoint(manifest.step):
            return f"the manifest of the newest checkpoint is damaged: {folder.name} says step {manifest.step}"
        break
    return ""
