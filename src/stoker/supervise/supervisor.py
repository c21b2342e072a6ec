"""Runs attempt after attempt until the run is done, stopped, or cannot succeed."""

import time
from contextlib import suppress
from dataclasses import dataclass, replace

from stoker.rundir import Exit, RunDir, events
from stoker.spec import contract
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.supervise import run_exit
from stoker.supervise.nodes.rendezvous import Rendezvous
from stoker.supervise.output.import_errors import find_import_error
from stoker.supervise.output.loss_curve import LossCurve
from stoker.supervise.output.redact import Redactor
from stoker.supervise.recorder import recorder
from stoker.supervise.signals import Signals
from stoker.supervise.workers.environment import redactor
from stoker.supervise.workers.exit import WorkerExit
from stoker.supervise.workers.group import DONE_OR_SAVED, POLL_S, WorkerGroup

PRESENCE_CHECK_S = 1.0  # between two checks that the run directory still exists
SAVE_TIMEOUT_S = 600.0  # for workers that were asked to save and exit
SAVE_AFTER_CRASH_TIMEOUT_S = 30.0  # the same when a worker of a script has crashed: the others may wait for it
STABLE_AFTER_S = 600.0  # a script that ran for so long has made progress; only the script knows when it saves


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptResult:
    """Of an attempt that wrote no exit.json, or one that does not end the run."""

    root_cause: WorkerExit | None
    regroup: bool
    """It was ended to start another with other nodes."""


def supervise(run: RunDir, *, rendezvous: Rendezvous, signals: Signals, stable_after_s: float = STABLE_AFTER_S) -> int:
    """Returns the exit code of the run. The caller holds the run's lock."""
    spec = run.any_spec()
    script = isinstance(spec, ScriptSpec)
    restart = crashes = attempt = 0
    newest = _newest_checkpoint(run)
    while rendezvous.wait_for_nodes(signals):
        started = time.monotonic()
        attempt = max(attempt + 1, _next_attempt(run, spec))
        result = _run_attempt(run, spec, rendezvous=rendezvous, attempt=attempt, restart=restart, signals=signals)
        exit, cause = run.exit(), result.root_cause
        restart += 1
        if result.regroup and (exit is None or exit.code == contract.EXIT_SAVED):
            continue
        if exit:
            return exit.code
        if cause is None or signals.stop_requested:
            break
        if cause.lost_node:
            continue  # not the run's fault; the platform decides whether the node is replaced
        previous, newest = newest, _newest_checkpoint(run)
        stable = script and time.monotonic() - started >= stable_after_s
        crashes = 1 if stable or previous != newest else crashes + 1
        again = crashes <= spec.on.max_restarts
        failed = events.Failed(code=cause.code, signal=cause.signal, line=cause.line, again=again, script=script)
        recorder(run)(failed, rank=cause.rank)
        if not again:
            rendezvous.check_leadership()
            return _write_exit(run, run_exit.failed(run, spec, cause, code=contract.EXIT_FAILED, times=crashes))
    rendezvous.check_leadership()
    exit = run.exit()
    if exit and exit.code == contract.EXIT_SAVED:  # written by the previous leader
        return exit.code
    return _write_exit(run, run_exit.stopped(run, spec))


def _run_attempt(
    run: RunDir, spec: AnySpec, *, rendezvous: Rendezvous, attempt: int, restart: int, signals: Signals
) -> AttemptResult:
    """Runs the workers to their end. Writes exit.json if they did not and the outcome is clear."""
    rendezvous.check_leadership()
    run.clear_exit()
    world, nodes = rendezvous.world, rendezvous.node_ranks()
    recorder(run)(events.World(attempt=attempt, workers=world, restart=restart, nodes=nodes))
    curve = LossCurve(run, world=world) if isinstance(spec, ScriptSpec) else None
    on_output = curve.add if curve else None
    workers = rendezvous.start_workers(spec, attempt=attempt, restart=restart, on_output=on_output)
    try:
        exit_requested = _watch(run, workers, signals, script=curve is not None)
        run.check_present()
        workers.wait_for_root_cause(lambda: exit_requested or signals.stop_requested)
        fatal, cause = workers.fatal_exit(), workers.root_cause()
        if contract.EXIT_SAVED in workers.poll().values():
            cause = None  # a worker exited on purpose, and its peers failed because of that
        on_purpose = exit_requested or run.exit() is not None
        workers.end()
    except BaseException:
        workers.kill()
        raise
    rendezvous.check_leadership()
    if not on_purpose and (exit := run.exit()) and exit.code == contract.EXIT_SAVED:
        run.clear_exit()  # it paused because its peers were gone and we ended it
    _redact_exit(run, redactor(spec))
    # A script that is stopped may exit with any code: it is paused.
    if run.exit() is None and not (exit_requested and curve):
        codes, training = set(workers.poll().values()), curve is not None and curve.started
        if exit := _final_exit(run, spec, codes, fatal=fatal, cause=cause, training=training):
            _write_exit(run, exit)
    return AttemptResult(root_cause=cause, regroup=exit_requested and not signals.stop_requested)


def _final_exit(
    run: RunDir, spec: AnySpec, codes: set[int], *, fatal: WorkerExit | None, cause: WorkerExit | None, training: bool
) -> Exit | None:
    """None when another attempt may succeed. `training`: a script has printed a step in this attempt."""
    if fatal:
        return run_exit.failed(run, spec, fatal, code=fatal.code or contract.EXIT_FAILED)
    if isinstance(spec, ScriptSpec) and cause and not training:
        error = find_import_error(spec.script, cause.output)
        return run_exit.not_importable(error, rank=cause.rank) if error else None
    return run_exit.done(run) if codes == {contract.EXIT_DONE} else None


def _watch(run: RunDir, workers: WorkerGroup, signals: Signals, *, script: bool) -> bool:
    """Returns when all workers have ended, or when a worker has crashed and the others would wait for it forever.

    True if they were asked to exit. The trainer's workers then exit with known codes. The workers of a script exit with
    any code; those that the signal kills do not prevent others from saving.
    """
    deadline = float("inf")
    exit_requested = False
    checked = time.monotonic()
    while workers.alive:
        if time.monotonic() - checked >= PRESENCE_CHECK_S:
            checked = time.monotonic()
            run.check_present()
        codes = set(workers.poll().values())
        crashed = codes - DONE_OR_SAVED
        if (signals.stop_requested or workers.regroup_reason) and not exit_requested:
            exit_requested = True
            workers.terminate()
            if signals.stop_requested:
                recorder(run)(events.Stopping(signal=signals.received[0].name))
            else:
                recorder(run)(events.Regrouping(reason=workers.regroup_reason or ""))
        if (exit_requested or contract.EXIT_SAVED in codes) and deadline == float("inf"):
            deadline = time.monotonic() + SAVE_TIMEOUT_S
        if signals.kill_requested or time.monotonic() > deadline:
            workers.kill()
        elif crashed and not (script and exit_requested):
            return exit_requested
        elif crashed:
            deadline = min(deadline, time.monotonic() + SAVE_AFTER_CRASH_TIMEOUT_S)
        time.sleep(POLL_S)
    if workers.is_node_leaving and not exit_requested:  # all have ended between two polls
        exit_requested = True
        recorder(run)(events.Regrouping(reason=workers.regroup_reason or ""))
    return exit_requested


def _next_attempt(run: RunDir, spec: AnySpec) -> int:
    if isinstance(spec, ScriptSpec):  # it writes no ledger
        return 1 + sum(isinstance(event, events.World) for event in run.events())
    return run.next_attempt()


def _newest_checkpoint(run: RunDir) -> int:
    """When it was written: a run that resumed from an older checkpoint saves the same step again."""
    return max(((saved.path / contract.MANIFEST_FILE).stat().st_mtime_ns for saved in run.saved()), default=0)


def _redact_exit(run: RunDir, redact: Redactor) -> None:
    """The reason that a worker wrote may quote a secret."""
    exit = run.exit()
    if exit is None:
        return
    clean = replace(exit, reason=redact.text(exit.reason), remedy=redact.text(exit.remedy))
    if clean != exit:
        _write_exit(run, clean)


def _write_exit(run: RunDir, exit: Exit) -> int:
    with suppress(OSError):  # with a full disk the exit code still shows how the run ended
        run.write_exit(exit)
    return exit.code
