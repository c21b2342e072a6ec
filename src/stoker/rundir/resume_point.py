"""Which step a run should resume from, by its records: lost checkpoints must not look like a run that never saved."""

from typing import Literal

from stoker.rundir.directory import RunDir
from stoker.rundir.events import CheckpointSaved, Started
from stoker.spec.errors import UserError


def last_saved_step(run: RunDir, resume: int | Literal["auto"]) -> int:
    """The last saved step by the run's records; 0 when none was saved.

    `resume` is checkpoint.resume of the spec: for a run that was rewound only later checkpoints count.
    """
    events = run.events()
    saves = [event for event in events if isinstance(event, CheckpointSaved)]
    if resume != "auto":
        saves = [save for save in saves[-1:] if save.resume == resume]
        return saves[-1].step if saves else resume
    exit = run.exit()
    step = max([save.step for save in saves[-1:]] + [(exit.step or 0) if exit else 0])
    if step or any(isinstance(event, Started) for event in events):
        return step
    return max((record["step"] for record in run.metrics()), default=0)  # the events are lost too


def checkpoints_lost(run: RunDir, step: int, detail: str, resume: int | Literal["auto"]) -> UserError:
    scratch = "" if resume == 0 else " start from scratch with checkpoint.resume=0,"
    return UserError(
        f"run '{run.name}' was saved at step {step}, and none of its checkpoints can be used ({detail})",
        remedy=f"Restore {run.checkpoints},{scratch} or start another run with --new",
    )
