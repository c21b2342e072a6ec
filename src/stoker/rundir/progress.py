"""Whether a run has been saved before, by its records: checkpoints that are gone must not look like none ever made."""

from typing import Literal

from stoker.rundir.directory import RunDir
from stoker.spec.errors import UserError


def saved_step(run: RunDir, resume: int | Literal["auto"]) -> int:
    """The step that the records say was saved last; 0 when none was, as for a run that was killed before.

    `resume` is the spec's checkpoint.resume: a run that was sent back has lost only what it saved since.
    """
    events = run.events()
    saves = [event for event in events if event.get("kind") == "checkpoint"]
    if resume != "auto":
        saves = [event for event in saves[-1:] if event.get("resume") == resume]
        return _step(saves[-1]) if saves else resume
    exit = run.exit()
    found = max([_step(event) for event in saves[-1:]] + [_count(exit.step) if exit else 0])
    if found or any(event.get("kind") == "started" for event in events):
        return found
    return max((_step(record) for record in run.metrics()), default=0)  # the events are gone too


def lost(run: RunDir, step: int, detail: str, resume: int | Literal["auto"]) -> UserError:
    scratch = "" if resume == 0 else " start from scratch with checkpoint.resume=0,"
    return UserError(
        f"run '{run.name}' was saved at step {step}, and no checkpoint of it can be used ({detail})",
        remedy=f"Restore {run.checkpoints},{scratch} or start another run with --new",
    )


def _step(record: dict[str, object]) -> int:
    return _count(record.get("step"))


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
