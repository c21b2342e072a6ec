"""How a run ended, in the words of exit.json."""

from stoker.rundir import Exit, RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.supervise import curves
from stoker.supervise.crew import Death


def done(run: RunDir) -> Exit:
    return Exit(state="done", code=contract.EXIT_DONE, step=last_step(run), reason="all workers ended")


def stopped(run: RunDir, spec: AnySpec) -> Exit:
    step = last_step(run)
    if isinstance(spec, ScriptSpec):
        reason = "the script has stopped; it starts again with what it has saved itself"
    else:
        where = f"it goes on from the checkpoint of step {step}" if step else "it has no checkpoint yet and starts anew"
        reason = f"stopped before the workers could save; {where}"
    return Exit(state="paused", code=contract.EXIT_SAVED, step=step, reason=reason)


def failed(run: RunDir, spec: AnySpec, death: Death, *, code: int, times: int = 1) -> Exit:
    script = isinstance(spec, ScriptSpec)
    between = "and never for long" if script else "with no new checkpoint between"
    often = f", {times} times in a row {between}" if times > 1 else ""
    hint = ""
    if death.signal == "SIGKILL":
        hint = f"It may have run out of memory{'' if script else ': lower batch.micro'}. "
    return Exit(
        state="failed",
        code=code,
        step=last_step(run),
        reason=f"{death}{often}",
        remedy=f"{hint}Read its log: stoker logs {run.path} --rank {death.rank}",
        rank=death.rank,
    )


def silenced(run: RunDir, *, times: int) -> Exit:
    return Exit(
        state="failed",
        code=contract.EXIT_FAILED,
        step=last_step(run),
        reason=f"its supervisor was killed {times} times in a row with no new checkpoint between",
        remedy="It may have run out of memory: give its pods more (on.memory), or lower batch.micro",
    )


def unusable(error: UserError, *, rank: int) -> Exit:
    return Exit(
        state="failed", code=contract.EXIT_USER, step=None, reason=error.problem, remedy=error.remedy, rank=rank
    )


def last_step(run: RunDir) -> int | None:
    """Of the newest checkpoint; a script's are its own, so what it said last counts."""
    if isinstance(run.any_spec(), ScriptSpec):
        return curves.last_step(run)
    return max((saved.step for saved in run.saved()), default=None)
