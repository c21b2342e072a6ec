"""Builds exit.json: how the run ended."""

import shlex

from stoker.rundir import Exit, RunDir
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.supervise.output import loss_curve
from stoker.supervise.output.import_errors import ScriptImportError
from stoker.supervise.workers.exit import WorkerExit


def done(run: RunDir) -> Exit:
    return Exit(state=RunState.DONE, code=contract.EXIT_DONE, step=last_step(run), reason="all workers ended")


def stopped(run: RunDir, spec: AnySpec) -> Exit:
    """The workers were stopped and wrote no exit.json themselves."""
    step = last_step(run)
    if isinstance(spec, ScriptSpec):
        reason = "the script was stopped; it resumes from what it has saved itself"
    else:
        start = f"it resumes from the checkpoint of step {step}" if step else "it has no checkpoint and starts again"
        reason = f"stopped before the workers could save; {start}"
    return Exit(state=RunState.PAUSED, code=contract.EXIT_SAVED, step=step, reason=reason)


def failed(run: RunDir, spec: AnySpec, worker: WorkerExit, *, code: int, times: int = 1) -> Exit:
    script = isinstance(spec, ScriptSpec)
    between = "and never for long" if script else "with no new checkpoint between"
    repeated = f", {times} times in a row {between}" if times > 1 else ""
    hint = ""
    if worker.signal == "SIGKILL":
        hint = f"It may have run out of memory{'' if script else ': lower batch.micro'}. "
    return Exit(
        state=RunState.FAILED,
        code=code,
        step=last_step(run),
        reason=f"{worker}{repeated}",
        remedy=f"{hint}Read its log: stoker logs {shlex.quote(str(run.path))} --rank {worker.rank}",
        rank=worker.rank,
    )


def supervisor_killed(run: RunDir, *, times: int) -> Exit:
    return Exit(
        state=RunState.FAILED,
        code=contract.EXIT_FAILED,
        step=last_step(run),
        reason=f"its supervisor was killed {times} times in a row with no new checkpoint between",
        remedy="It may have run out of memory: give its pods more (on.memory), or lower batch.micro",
    )


def not_importable(error: ScriptImportError, *, rank: int) -> Exit:
    return Exit(
        state=RunState.FAILED, code=contract.EXIT_USER, step=None, reason=error.problem, remedy=error.remedy, rank=rank
    )


def last_step(run: RunDir) -> int | None:
    """Of the newest checkpoint; for a script, whose checkpoints are its own, the last step that it printed."""
    if isinstance(run.any_spec(), ScriptSpec):
        return loss_curve.last_step(run)
    return max((saved.step for saved in run.saved()), default=None)
