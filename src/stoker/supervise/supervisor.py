"""Attempt after attempt until the run is done, stopped, or hopeless."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from stoker.rundir import Exit, RunDir
from stoker.spec import contract
from stoker.spec.run import RunSpec
from stoker.supervise.signals import Signals
from stoker.supervise.workers import POLL, Death, Workers, environments

GRACE = 600.0  # seconds a save may take once it was asked for


def supervise(run: RunDir, *, command: Sequence[str], world: int, signals: Signals) -> int:
    """Returns the exit code of the run; the caller holds the run's lock."""
    spec = run.spec()
    restart = crashes = 0
    newest = _newest_save(run)
    while not signals.stopping:
        culprit = _attempt(run, spec, command=command, world=world, restart=restart, signals=signals)
        ended = run.exit()
        if ended:
            return ended.code
        if culprit is None or signals.stopping:
            break
        saved, newest = newest, _newest_save(run)
        crashes = crashes + 1 if saved == newest else 1
        again = crashes <= spec.on.max_restarts
        _note(
            run, "failed", rank=culprit.rank, code=culprit.code, signal=culprit.signal, line=culprit.line, again=again
        )
        if not again:
            return _end(run, _failed(run, culprit, code=contract.EXIT_FAILED, times=crashes))
        restart += 1
    return _end(run, _stopped(run))


def _attempt(
    run: RunDir, spec: RunSpec, *, command: Sequence[str], world: int, restart: int, signals: Signals
) -> Death | None:
    """Run the workers to their end. exit.json tells how that was, when they could write it; else who spoiled it."""
    run.clear_exit()
    attempt = run.next_attempt()
    _note(run, "world", attempt=attempt, workers=world, restart=restart)
    environment = environments(
        os.environ, spec.env, run=run, world=world, attempt=attempt, restart=restart, most=spec.on.max_restarts
    )
    workers = Workers(run, command, environment)
    _watch(run, workers, signals)
    workers.settle()
    fatal, culprit = workers.fatal(), workers.culprit()
    if contract.EXIT_SAVED in workers.poll().values():
        culprit = None  # a worker ended by its own decision, and took its peers with it
    workers.end()
    if run.exit() is None and fatal:
        _end(run, _failed(run, fatal, code=fatal.code or contract.EXIT_FAILED))
    elif run.exit() is None and set(workers.poll().values()) == {contract.EXIT_DONE}:
        _end(run, Exit(state="done", code=contract.EXIT_DONE, step=None, reason="all workers ended"))
    return culprit


def _watch(run: RunDir, workers: Workers, signals: Signals) -> None:
    """Returns when all workers have ended, or when those that are left wait in vain for one that has."""
    deadline = float("inf")
    asked = False
    while workers.alive:
        codes = set(workers.poll().values())
        if signals.stopping and not asked:
            asked = True
            workers.terminate()
            _note(run, "stopping", signal=signals.received[0].name)
        if (asked or contract.EXIT_SAVED in codes) and deadline == float("inf"):
            deadline = time.monotonic() + GRACE
        if signals.impatient or time.monotonic() > deadline:
            workers.kill()
        elif codes - {contract.EXIT_DONE, contract.EXIT_SAVED}:
            return
        time.sleep(POLL)


def _stopped(run: RunDir) -> Exit:
    step = _last_step(run)
    where = f"it goes on from the checkpoint of step {step}" if step else "it has no checkpoint yet and starts anew"
    return Exit(
        state="paused", code=contract.EXIT_SAVED, step=step, reason=f"stopped before the workers could save; {where}"
    )


def _failed(run: RunDir, death: Death, *, code: int, times: int = 1) -> Exit:
    often = f", {times} times in a row with no new checkpoint between" if times > 1 else ""
    hint = "It may have run out of memory: lower batch.micro. " if death.signal == "SIGKILL" else ""
    return Exit(
        state="failed",
        code=code,
        step=_last_step(run),
        reason=f"{death}{often}",
        remedy=f"{hint}Read its log: stoker logs {run.path} --rank {death.rank}",
        rank=death.rank,
    )


def _newest_save(run: RunDir) -> int:
    """Changes with every new checkpoint, even when a run was sent back and saves an old step again."""
    return max(((saved.path / contract.MANIFEST_FILE).stat().st_mtime_ns for saved in run.saved()), default=0)


def _last_step(run: RunDir) -> int | None:
    return max((saved.step for saved in run.saved()), default=None)


def _end(run: RunDir, exit: Exit) -> int:
    with suppress(OSError):  # a full disk must not hide how the run ended: the code below tells it too
        run.write_exit(exit)
    return exit.code


def _note(run: RunDir, kind: str, *, rank: int | None = None, **facts: object) -> None:
    with suppress(OSError):  # a full disk stops a save, not the supervisor
        run.add_event(kind, rank=rank, **facts)
