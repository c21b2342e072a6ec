"""Runs on their way: started, followed to their end, and how they ended."""

import time
from collections.abc import Callable

from stoker.api.origins import known_vocab, teacher_shape
from stoker.launch import secrets
from stoker.launch.backend import Running, Submission
from stoker.launch.local import Local
from stoker.observe.logs import last_lines
from stoker.rundir import Exit, RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec, ScriptSpec

POLL = 0.2  # seconds between two looks at a run


def plan(spec: AnySpec, run: RunDir) -> Submission:
    backend = Local()
    secrets.resolve(spec)  # what is missing is told before anything is made
    if isinstance(spec, ScriptSpec):
        return backend.plan(spec, backend.discover(), run.path)
    model = spec.model.model_copy(update={"vocab": spec.model.vocab or known_vocab(spec.data)})
    known = spec.model_copy(update={"model": model})
    return backend.plan(known, backend.discover(), run.path, teacher=teacher_shape(spec, run))


def start(submission: Submission, *, detached: bool = False) -> Running:
    """Detached it outlives this process; else it dies with it, however that dies."""
    return Local().submit(submission, detached=detached)


def follow(running: Running, look: Callable[[], None] = lambda: None) -> int:
    """Wait until it has ended, and `look` now and then. Whatever cuts this short, the run saves first."""
    try:
        while True:
            code = running.poll()
            look()  # after the poll: all that was written before the end is seen
            if code is not None:
                return code
            time.sleep(POLL)
    finally:
        if running.poll() is None:
            running.stop()
        while running.poll() is None:
            time.sleep(POLL)


def await_start(run: RunDir, running: Running) -> int | None:
    """Until the run is in its hands; its exit code when it has ended before one could see that."""
    while (code := running.poll()) is None and not running.holds(run):
        time.sleep(POLL / 4)
    return code


def ending(run: RunDir, code: int) -> Exit:
    """How a run ended: its own word, or what can be told when it had no time for one."""
    run.check_present()
    exit = run.exit()
    if exit is not None and exit.code == code:
        return exit
    step = max((saved.step for saved in run.saved()), default=None)
    if code == contract.EXIT_SAVED:  # without exit.json: there was no room for it
        last = "no checkpoint stands" if step is None else f"the checkpoint of step {step} stands"
        reason = f"the run could not write down how it ended; {last}"
        remedy = "Make room on its disk, then run the same command again"
        return Exit(state="paused", code=code, step=step, reason=reason, remedy=remedy)
    log = run.path / contract.LOGS_DIR / contract.SUPERVISOR_LOG
    said = " ".join(last_lines(log, 1)).removeprefix("stoker: ")
    if code == contract.EXIT_USER:
        raise UserError(said, remedy="")
    return Exit(
        state="failed",
        code=contract.EXIT_FAILED,
        step=step,
        reason=f"the supervisor ended with code {code}",
        remedy=f"Its log is {log}; the same stoker train command goes on",
    )
