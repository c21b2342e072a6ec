"""`stoker train`: prepare and start a run, follow it, and report how it ended."""

import argparse
import signal
import time
from collections import deque

import stoker.backends.local.backend  # noqa: F401 (loaded with the verb: there Ctrl-C ends the process at once)
from stoker.api.launch import Launched, follow, launch, plan
from stoker.api.opening import free_name
from stoker.api.run import read_spec
from stoker.backends.backend import Running
from stoker.cli import output, summary
from stoker.cli.arguments import file_and_overrides, runs_argument, trust_argument
from stoker.cli.interrupts import Interrupts
from stoker.cli.launch_display import ProgressListener, dry_run, plan_rows
from stoker.cli.progress.training import TrainingDisplay, TrainingLines, training_display
from stoker.cli.screen import ignore_output_errors
from stoker.rundir import Exit, Record, RunDir
from stoker.rundir.events import Started, Stopping, World, parse_event
from stoker.rundir.logs import LogView, last_lines
from stoker.rundir.records import Tail, parse_metrics
from stoker.rundir.state import RunState
from stoker.rundir.view import RECENT, how_it_ended, seconds_left, view
from stoker.spec import contract
from stoker.spec.errors import RunFailed, SavedForLater, UserError
from stoker.spec.run import ScriptSpec

LOG_LINES = 15


def train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("arguments", nargs="*", metavar="RUN.yaml key=value", help="the run file, and overrides")
    runs_argument(parser)
    trust_argument(parser)
    parser.add_argument("--new", action="store_true", help="start another run instead of resuming the existing one")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")


def train(args: argparse.Namespace) -> int:
    file, overrides = file_and_overrides(args.arguments, verb="train")
    spec = read_spec(file, overrides).spec
    if not spec.on.is_here:
        raise UserError(
            f"on.kind is {spec.on.kind}, and stoker train trains here", remedy=f"Run: stoker launch {file or '…'}"
        )
    if args.new:
        spec = free_name(spec, args.runs)
    planned = plan(spec, runs=args.runs)
    run = planned.run
    if not args.dry_run:
        ignore_output_errors()
    print(output.pairs(plan_rows(planned)), flush=True)
    if args.dry_run:
        print(dry_run(planned, folder=None, as_json=False))
        return contract.EXIT_DONE
    with Interrupts() as interrupts:
        watcher = _Watcher(run, interrupts, script=isinstance(spec, ScriptSpec))  # before the launch, to miss nothing
        with ProgressListener(interrupts) as listener:
            launched = launch(planned, listener=listener, detached=False)
        if launched.done:
            print(summary.already_done(run, launched.spec, launched.done))
            return contract.EXIT_DONE
        assert launched.running is not None, "it was submitted"
        began = time.monotonic()
        code = _follow(launched, launched.running, watcher)
        return end(run, code, interrupts, seconds=time.monotonic() - began)


def _follow(launched: Launched, running: Running, watcher: "_Watcher") -> int:
    """Show events and metrics until the run has ended. Returns the exit code of its supervisor."""
    display: TrainingDisplay = TrainingLines(steps=None)
    if not isinstance(launched.spec, ScriptSpec):
        display = training_display(steps=launched.steps, step=view(launched.run).checkpoint or 0)
    with display:
        return follow(running, lambda: watcher.look(running, display))


class _Watcher:
    """Shows new lines of the run's files, and passes interrupts to the run."""

    def __init__(self, run: RunDir, interrupts: Interrupts, *, script: bool) -> None:
        self._events = Tail.from_now(run.path / contract.EVENTS_FILE)
        self._metrics = Tail.from_now(run.path / contract.METRICS_FILE)
        self._interrupts = interrupts
        self._passed_on = 0  # interrupts
        self._started: Started | None = None
        self._recent: deque[Record] = deque(maxlen=RECENT)
        self._log = _from_now(run) if script else None  # a script prints its own progress

    def look(self, running: Running, display: TrainingDisplay) -> None:
        for event in self._events.records(parse_event):
            self._started = event if isinstance(event, Started) else self._started
            if line := summary.shown_while_training(event):
                display.note(line)
        for line in self._log.lines(ended=False) if self._log else ():
            display.note(output.printable(line))
        for record in self._metrics.records(parse_metrics) if not self._log else ():
            self._recent.append(record)
            display.step(record, left=seconds_left(self._started, self._recent, record["step"]))
        if len(self._interrupts.received) > self._passed_on:
            display.note("stopping now" if self._passed_on else "saving … (press again to stop now)")
            self._passed_on = len(self._interrupts.received)
            running.stop()


def _from_now(run: RunDir) -> LogView:
    """The log of the first worker, without the lines of earlier launches."""
    log = LogView(run, rank=0, tail=0 if run.log(0).exists() else None)
    list(log.lines())
    return log


def end(run: RunDir, code: int, interrupts: Interrupts, *, seconds: float) -> int:
    """Report how it ended. Returns the exit code, or raises the error of a failed or paused run."""
    if interrupts.received and run.exit() is None:
        reason = "stopped before training started"
        exit = Exit(state=RunState.PAUSED, code=contract.EXIT_SAVED, step=None, reason=reason)
    else:
        exit = how_it_ended(run, code)
    if exit.state == RunState.FAILED:
        raise _failure(run, exit)
    print(output.pairs(summary.ending(run, exit, seconds=seconds)), flush=True)
    if exit.code == contract.EXIT_DONE:
        return contract.EXIT_DONE
    if interrupts.received:
        return contract.EXIT_INTERRUPTED if interrupts.received[0] == signal.SIGINT else contract.EXIT_SAVED
    if _stopped_by_another(run):
        return contract.EXIT_DONE
    raise SavedForLater(f"run '{run.name}' has paused", remedy=exit.remedy or "Run the same command again to resume")


def _failure(run: RunDir, exit: Exit) -> UserError | RunFailed:
    if exit.code == contract.EXIT_USER:
        return UserError(exit.reason, remedy=exit.remedy)
    if exit.rank is not None:
        print(f"the last lines of the log of worker {exit.rank}:")
        for line in last_lines(run.log(exit.rank), LOG_LINES):
            print(f"  | {output.printable(line)}")
    return RunFailed(f"run '{run.name}' failed: {exit.reason}", remedy=exit.remedy)


def _stopped_by_another(run: RunDir) -> bool:
    """The run was stopped by `stoker stop`, not by this command: then it ended as the user wanted."""
    for event in run.events_backwards(Stopping, World):
        return isinstance(event, Stopping)
    return False
