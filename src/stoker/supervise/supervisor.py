"""Attempt after attempt until the run is done, stopped, or hopeless."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from stoker.rundir import Exit, RunDir
from stoker.spec import contract
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.supervise import verdict
from stoker.supervise.crew import POLL, Crew, Death
from stoker.supervise.curves import Curve
from stoker.supervise.imports import import_fault
from stoker.supervise.muster import Muster
from stoker.supervise.redact import Redactor
from stoker.supervise.signals import Signals
from stoker.supervise.workers import redactor

PRESENCE_CHECK_S = 1.0  # between two checks that the run directory is still there
GRACE = 600.0  # seconds a save may take once it was asked for
BEREAVED = 30.0  # the same for a script of which a worker has died when asked: the others may wait for it in vain
STEADY = 600.0  # seconds after which a script is taken to have got somewhere: when it saves is its own affair


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """Of an attempt that wrote no exit.json, or one that is not the run's last."""

    culprit: Death | None
    regroup: bool
    """It was ended for another one with other nodes."""


def supervise(run: RunDir, *, muster: Muster, signals: Signals, steady: float = STEADY) -> int:
    """Returns the exit code of the run; the caller holds the run's lock."""
    spec = run.any_spec()
    script = isinstance(spec, ScriptSpec)
    restart = crashes = attempt = 0
    newest = _newest_save(run)
    while muster.gather(signals):
        began = time.monotonic()
        attempt = max(attempt + 1, _number(run, spec))
        ending = _attempt(run, spec, muster=muster, attempt=attempt, restart=restart, signals=signals)
        ended, culprit = run.exit(), ending.culprit
        restart += 1
        if ending.regroup and (ended is None or ended.code == contract.EXIT_SAVED):
            continue
        if ended:
            return ended.code
        if culprit is None or signals.stopping:
            break
        if culprit.lost:
            continue  # not the run's fault; whether the node comes back is the platform's affair
        saved, newest = newest, _newest_save(run)
        lived = script and time.monotonic() - began >= steady
        crashes = 1 if lived or saved != newest else crashes + 1
        again = crashes <= spec.on.max_restarts
        noted(run)(
            "failed",
            rank=culprit.rank,
            code=culprit.code,
            signal=culprit.signal,
            line=culprit.line,
            again=again,
            script=script,
        )
        if not again:
            muster.reassure()
            return _end(run, verdict.failed(run, spec, culprit, code=contract.EXIT_FAILED, times=crashes))
    muster.reassure()
    ended = run.exit()
    if ended and ended.code == contract.EXIT_SAVED:  # the leader before us has said it already
        return ended.code
    return _end(run, verdict.stopped(run, spec))


def noted(run: RunDir) -> Callable[..., None]:
    """Adds an event, if that can be: a full disk stops a save, not the supervisor."""

    def note(kind: str, *, rank: int | None = None, **facts: object) -> None:
        with suppress(OSError):
            run.add_event(kind, rank=rank, **facts)

    return note


def _attempt(run: RunDir, spec: AnySpec, *, muster: Muster, attempt: int, restart: int, signals: Signals) -> Ending:
    """Run the workers to their end. exit.json tells how that was, when they could write it; else who spoiled it."""
    muster.reassure()
    run.clear_exit()
    noted(run)("world", attempt=attempt, workers=muster.world, restart=restart, **muster.facts())
    curve = Curve(run, world=muster.world) if isinstance(spec, ScriptSpec) else None
    crew = muster.start(spec, attempt=attempt, restart=restart, hear=curve.hear if curve else None)
    try:
        asked = _watch(run, crew, signals, script=curve is not None)
        run.check_present()
        crew.settle(lambda: asked or signals.stopping)
        fatal, culprit = crew.fatal(), crew.culprit()
        if contract.EXIT_SAVED in crew.poll().values():
            culprit = None  # a worker ended by its own decision, and took its peers with it
        by_itself = asked or run.exit() is not None
        crew.end()
    except BaseException:
        crew.kill()
        raise
    muster.reassure()
    if not by_itself and (exit := run.exit()) and exit.code == contract.EXIT_SAVED:
        run.clear_exit()  # it paused because its peers were gone and we ended it
    _redact_exit(run, redactor(spec))
    if run.exit() is None and not (asked and curve):  # whatever a script ends with when it is stopped is a pause
        codes, begun = set(crew.poll().values()), curve is not None and curve.begun
        exit = _judgement(run, spec, codes, fatal=fatal, culprit=culprit, begun=begun)
        if exit:
            _end(run, exit)
    return Ending(culprit=culprit, regroup=asked and not signals.stopping)


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


def _watch(run: RunDir, crew: Crew, signals: Signals, *, script: bool) -> bool:
    """Returns when all workers have ended, or when those that are left wait in vain for one that has.

    True when they were asked to end. Workers of ours then end with codes of ours; a script's as they please, and one
    that dies of the signal does not stop another from saving.
    """
    deadline = float("inf")
    asked = False
    checked = time.monotonic()
    while crew.alive:
        if time.monotonic() - checked >= PRESENCE_CHECK_S:
            checked = time.monotonic()
            run.check_present()
        codes = set(crew.poll().values())
        crashed = codes - {contract.EXIT_DONE, contract.EXIT_SAVED}
        if (signals.stopping or crew.change) and not asked:
            asked = True
            crew.terminate()
            if signals.stopping:
                noted(run)("stopping", signal=signals.received[0].name)
            else:
                noted(run)("regrouping", reason=crew.change)
        if (asked or contract.EXIT_SAVED in codes) and deadline == float("inf"):
            deadline = time.monotonic() + GRACE
        if signals.impatient or time.monotonic() > deadline:
            crew.kill()
        elif crashed and not (script and asked):
            return asked
        elif crashed:
            deadline = min(deadline, time.monotonic() + BEREAVED)
        time.sleep(POLL)
    if crew.leaving and not asked:  # all have ended between two looks
        asked = True
        noted(run)("regrouping", reason=crew.change)
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
