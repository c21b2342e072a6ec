"""Compares the ledger of a run with its other records: metrics, events, exit.json and the newest checkpoint.

A truncated ledger is consistent in itself. The other records show that steps are missing: the newest step that any of
them has must be in the ledger, and the ledger must be the one that the newest checkpoint was saved with. They are read
before the ledger, because a run that is training only adds to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.data.ledger import AttemptLedger, Mark
from stoker.observe.audit_result import AuditResult
from stoker.rundir import Exit, RunDir, Saved
from stoker.rundir.checkpoint import read_sealed
from stoker.rundir.events import CheckpointSaved, Finished, Paused, Started, StepSkipped
from stoker.rundir.state import RunState
from stoker.spec import contract

TRAINED = (CheckpointSaved, Paused, Finished, StepSkipped)
"""Events whose step was trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStep:
    """A step that a record mentions."""

    step: int
    file: str
    attempt: int | None = None
    """That trained it, if known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The progress of a run according to its records other than the ledger."""

    exit: Exit | None
    exit_damaged: bool
    steps: list[RecordedStep]
    logged: bool
    """metrics.jsonl has a record."""
    saved: Saved | None
    """The newest checkpoint."""
    damaged: str
    """What is wrong with the manifest of this or a newer checkpoint; empty if nothing is."""


def gather(run: RunDir) -> Evidence:
    events = run.events()
    exit = run.exit()
    starts = [index for index, event in enumerate(events) if isinstance(event, Started)]
    start = events[starts[-1]] if starts else None
    attempt = start.attempt if isinstance(start, Started) else None
    steps = [
        RecordedStep(step=event.step, file=contract.EVENTS_FILE, attempt=attempt)
        for event in (events[starts[-1] :] if starts else [])
        if isinstance(event, TRAINED)
    ]
    metrics = run.metrics()
    if metrics:
        steps.append(RecordedStep(step=metrics[-1]["step"], file=contract.METRICS_FILE))
    last = next(run.metrics_backwards(), None)
    if last and start and last.get("time", 0) > start.time:
        steps.append(RecordedStep(step=last["step"], file=contract.METRICS_FILE, attempt=attempt))
    saved = max(run.saved(), key=lambda saved: saved.step, default=None)
    return Evidence(
        exit=exit,
        exit_damaged=bool(run.skipped[contract.EXIT_FILE]),
        steps=steps,
        logged=bool(metrics),
        saved=saved,
        damaged=_damaged(run),
    )


def compare(evidence: Evidence, attempts: Sequence[AttemptLedger], drawn: int, result: AuditResult) -> None:
    """`drawn`: samples in the ledger up to the step of the newest checkpoint."""
    _compare_steps(evidence, attempts, result)
    _compare_exit(evidence, result)
    if evidence.damaged:
        result.add_problem(evidence.damaged)
    if evidence.saved is None:
        result.unchecked.append("there is no checkpoint to compare the ledger with")
        return
    saved, progress = evidence.saved, evidence.saved.manifest.state.progress
    if saved.step > result.steps:
        result.add_problem(f"the newest checkpoint is of step {saved.step}, and the ledger ends at step {result.steps}")
    elif "drawn" in progress.model_fields_set and progress.drawn != drawn:
        result.add_problem(
            f"the checkpoint of step {saved.step} was trained on {progress.drawn} samples, and the ledger has {drawn}"
        )
    _compare_marks(saved, attempts, result)


def _compare_steps(evidence: Evidence, attempts: Sequence[AttemptLedger], result: AuditResult) -> None:
    if result.steps > 1 and not evidence.logged:
        result.add_problem(f"{contract.METRICS_FILE} has no record of any step")
    ends = {attempt.attempt: attempt.last() for attempt in attempts}
    newest = max(ends.values(), default=0)
    in_order = sorted(evidence.steps, key=lambda recorded: recorded.step)
    for recorded in {(recorded.file, recorded.attempt): recorded for recorded in in_order}.values():
        end = newest if recorded.attempt is None else ends.get(recorded.attempt, 0)
        if recorded.step > end:
            ledger = "the ledger" if recorded.attempt is None else f"the ledger of attempt {recorded.attempt}"
            result.add_problem(f"{recorded.file} has step {recorded.step}, and {ledger} ends at step {end}")


def _compare_exit(evidence: Evidence, result: AuditResult) -> None:
    if evidence.exit_damaged:
        result.add_problem(f"{contract.EXIT_FILE} is damaged")
    exit = evidence.exit
    if exit is None or (exit.step is None and exit.state != RunState.DONE):
        return
    saved = evidence.saved.step if evidence.saved else None
    agrees = exit.step == result.steps or (exit.state != RunState.DONE and exit.step == saved)
    if not agrees:
        result.add_problem(f"the run ended at step {exit.step}, and the ledger at step {result.steps}")


def _compare_marks(saved: Saved, attempts: Sequence[AttemptLedger], result: AuditResult) -> None:
    """Each attempt counts up to the step that the next one resumed from; the last one, up to the checkpoint."""
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
            result.add_problem(
                f"the ledger of attempt {number} is missing: the checkpoint of step {saved.step} was saved with it"
            )
        elif known[number].mark(stop) != marks[number]:
            result.add_problem(
                f"the ledger of attempt {number} is not the one that the checkpoint of step {saved.step} was saved with"
            )
    first = min(numbers, default=0)
    if first in known:
        before = [number for number in known if number < first and known[number].start < known[first].start]
        result.unchecked += [f"attempts up to {max(before)} have no digest in a checkpoint"] if before else []


def _damaged(run: RunDir) -> str:
    for folder in sorted(run.checkpoints.glob(contract.CHECKPOINT_GLOB), reverse=True):
        try:
            manifest = read_sealed(folder)
        except FileNotFoundError:  # an interrupted save
            continue
        except (OSError, ValueError) as e:
            return f"the manifest of the newest checkpoint is damaged: {folder.name}: {e}"
        if manifest.state.progress.step != manifest.step or folder != run.checkpoint(manifest.step):
            return f"the manifest of the newest checkpoint is damaged: {folder.name} says step {manifest.step}"
        break
    return ""
