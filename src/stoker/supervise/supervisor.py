"""Attempt after attempt until the run is done, stopped, or hopeless."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from stoker.rundir import Exit, RunDir
from stoker.spec import contract
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.supervise import verdict
from stoker.supervise.curves import Curve
from stoker.supervise.imports import import_fault
from stoker.supervise.redact import Redactor
from stoker.supervise.signals import Signals
from stoker.supervise.workers import POLL, Death, Workers, environments

GRACE = 600.0  # seconds a save may take once it was asked for
BEREAVED = 30.0  # the same for a script of which a worker has died when asked: the others may wait for it in vain
STEADY = 600.0  # seconds after which a script is taken to have got somewhere: when it saves is its own affair


def supervise(run: RunDir, *, command: Sequence[str], world: int, signals: Signals, steady: float = STEADY) -> int:
    """Returns the exit code of the run; the caller holds the run's lock."""
    spec = run.any_spec()
    script = isinstance(spec, ScriptSpec)
    restart = crashes = 0
    newest = _newest_save(run)
    while not signals.stopping:
        began = time.monotonic()
        culprit = _attempt(run, spec, command=command, world=world, restart=restart, signals=signals)
        ended = run.exit()
        if ended:
            return ended.code
        if culprit is None or signals.stopping:
            break
        saved, newest = newest, _newest_save(run)
        lived = script and time.monotonic() - began >= steady
        crashes = 1 if lived or saved != newest else crashes + 1
        again = crashes <= spec.on.max_restarts
        _note(
            run,
            "failed",
            rank=culprit.rank,
            code=culprit.code,
            signal=culprit.signal,
            line=culprit.line,
            again=again,
            script=script,
        )
        if not again:
            return _end(run, verdict.failed(run, spec, culprit, code=contract.EXIT_FAILED, times=crashes))
        restart += 1
    return _end(run, verdict.stopped(run, spec))


def _attempt(
    run: RunDir, spec: AnySpec, *, command: Sequence[str], world: int, restart: int, signals: Signals
) -> Death | None:
    """Run the workers to their end. exit.json tells how that was, when they could write it; else who spoiled it."""
    run.clear_exit()
    attempt = _number(run, spec)
    _note(run, "world", attempt=attempt, workers=world, restart=restart)
    secrets = {name: os.environ[name] for name in spec.secrets if name in os.environ}
    environment = environments(
        os.environ,
        spec.env | secrets,
        run=run,
        world=world,
        attempt=attempt,
        restart=restart,
        most=spec.on.max_restarts,
    )
    redact = Redactor(secrets.values())
    curve = Curve(run, world=world) if isinstance(spec, ScriptSpec) else None
    workers = Workers(run, command, environment, redact=redact, hear=curve.hear if curve else None)
    asked = _watch(run, workers, signals, script=curve is not None)
    workers.settle()
    fatal, culprit = workers.fatal(), workers.culprit()
    if contract.EXIT_SAVED in workers.poll().values():
        culprit = None  # a worker ended by its own decision, and took its peers with it
    workers.end()
    _redact_exit(run, redact)
    if run.exit() is None and not (asked and curve):  # whatever a script ends with when it is stopped is a pause
        codes, begun = set(workers.poll().values()), curve is not None and curve.begun
        exit = _judgement(run, spec, codes, fatal=fatal, culprit=culprit, begun=begun)
        if exit:
            _end(run, exit)
    return culprit


def _judgement(
    run: RunDir, spec: AnySpec, codes: set[int], *, fatal: Death | None, culprit: Death | None, begun: bool
) -> Exit | None:
    """None when another attempt may go better."""
    if fatal:
        return verdict.failed(run, spec, fatal, code=fatal.code or contract.EXIT_FAILED)
    if isinstance(spec, ScriptSpec) and culprit and not begun:
        fault = import_fault(spec.script, culprit.said)
        return verdict.unusable(fault, rank=culprit.rank) if fault else None
    return verdict.done(run) if codes == {contract.EXIT_DONE} else None


def _watch(run: RunDir, workers: Workers, signals: Signals, *, script: bool) -> bool:
    """Returns when all workers have ended, or when those that are left wait in vain for one that has.

    True when they were asked to end. Workers of ours then end with codes of ours; a script's as they please, and one
    that dies of the signal does not stop another from saving.
    """
    deadline = float("inf")
    asked = False
    while workers.alive:
        codes = set(workers.poll().values())
        crashed = codes - {contract.EXIT_DONE, contract.EXIT_SAVED}
        if signals.stopping and not asked:
            asked = True
            workers.terminate()
            _note(run, "stopping", signal=signals.received[0].name)
        if (asked or contract.EXIT_SAVED in codes) and deadline == float("inf"):
            deadline = time.monotonic() + GRACE
        if signals.impatient or time.monotonic() > deadline:
            workers.kill()
        elif crashed and not (script and asked):
            return asked
        elif crashed:
            deadline = min(deadline, time.monotonic() + BEREAVED)
        time.sleep(POLL)
    return asked


def _number(run: RunDir, spec: AnySpec) -> int:
    if isinstance(spec, ScriptSpec):  # it writes no ledger
        return 1 + sum(1 for event in run.events() if event["kind"] == "world")
    return run.next_attempt()


def _newest_save(run: RunDir) -> int:
    """Changes with every new checkpoint, even when a run was sent back and saves an old step again."""
    return max(((saved.path / contract.MANIFEST_FILE).stat().st_mtime_ns for saved in run.saved()), default=0)


def _redact_exit(run: RunDir, redact: Redactor) -> None:
    """A worker's last word may quote what it was given."""
    exit = run.exit()
    if exit is None:
        return
    clean = replace(exit, reason=redact.text(exit.reason), remedy=redact.text(exit.remedy))
    if clean != exit:
        _end(run, clean)


def _end(run: RunDir, exit: Exit) -> int:
    with suppress(OSError):  # a full disk must not hide how the run ended: the code below tells it too
        run.write_exit(exit)
    return exit.code


def _note(run: RunDir, kind: str, *, rank: int | None = None, **facts: object) -> None:
    with suppress(OSError):  # a full disk stops a save, not the supervisor
        run.add_event(kind, rank=rank, **facts)
