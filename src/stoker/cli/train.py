"""`stoker train`: prepare, start, follow, and tell how it ended."""

import argparse
import os
import shlex
import signal
import time
from collections import deque
from pathlib import Path

from stoker.api.opening import Opened, OpenedTraining, begin, free_name
from stoker.api.origins import as_asked
from stoker.api.running import ending, follow, plan, start
from stoker.cli import describe, output
from stoker.cli.interrupts import Interrupts
from stoker.cli.places import runs_argument, trust_argument
from stoker.cli.progress import Display, Lines, display, preparing
from stoker.cli.screen import outlive_readers
from stoker.launch.backend import Running, Submission
from stoker.observe.logs import LogView, last_lines
from stoker.observe.runs import RECENT, seconds_left, view
from stoker.observe.tail import Tail
from stoker.rundir import Exit, Record, RunDir, consent
from stoker.rundir.records import is_event, is_metrics
from stoker.spec import contract
from stoker.spec.errors import RunFailed, SavedForLater, UserError
from stoker.spec.load import Loaded, load
from stoker.spec.run import ScriptSpec
from stoker.storage.mirror import run_dir

LOG_LINES = 15


def train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="RUN.yaml key=value", help="the run file, and values that overrule it"
    )
    runs_argument(parser)
    trust_argument(parser)
    parser.add_argument(
        "--new", action="store_true", help="start another run instead of going on with the one there is"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")


def train(args: argparse.Namespace) -> int:
    file, words = file_and_words(args.words, verb="train")
    spec = own_file(file, words).spec
    if spec.on.kind != "local":
        raise UserError(
            f"on.kind is {spec.on.kind}, and stoker train trains here", remedy=f"Run: stoker launch {file or '…'}"
        )
    if args.new:
        spec = free_name(spec, args.runs)
    spec = as_asked(spec, runs=args.runs)
    run = RunDir(args.runs / spec.name)
    submission = plan(spec, run)
    if not args.dry_run:
        outlive_readers()
    print(output.pairs(describe.plan(spec, submission, run_dir(run.path))), flush=True)
    if args.dry_run:
        print(output.pairs([("command", shlex.join(submission.argv))]))
        return contract.EXIT_DONE
    with Interrupts() as interrupts:
        script = isinstance(spec, ScriptSpec)
        watcher = _Watcher(run, interrupts, script=script)  # before anything is done, so that it sees all of it
        with preparing() as progress:
            opened = begin(spec, runs=args.runs, progress=progress)
        if opened.done:
            print(describe.already_done(run, spec, opened.done))
            return contract.EXIT_DONE
        if isinstance(opened, OpenedTraining):
            print(output.pairs(describe.goal(opened)), flush=True)
        interrupts.hold()
        began = time.monotonic()
        code = _follow(opened, submission, watcher)
        return end(run, code, interrupts, seconds=time.monotonic() - began)


def file_and_words(words: list[str], *, verb: str) -> tuple[str | None, list[str]]:
    if not words:
        raise UserError(
            f"{verb} needs a run file",
            remedy=f"Write: stoker {verb} RUN.yaml. If you have none, create one with: stoker init DATA",
        )
    if "" in words:
        raise UserError("an argument is empty", remedy=f"Write: stoker {verb} RUN.yaml key=value")
    files = [word for word in words if "=" not in word or os.path.isfile(word)]
    if len(files) > 1:
        raise UserError(f"{files[1]} is a second run file", remedy="Give one, and the rest as key=value")
    return files[0] if files else None, [word for word in words if word not in files]


def own_file(file: str | None, words: list[str]) -> Loaded:
    """What the user asks for, by a run file of their own or, with consent, by that of a run."""
    loaded = load(Path(file) if file else None, words)
    if file and (run := consent.run_of(Path(file))):
        consent.require_launch(run, loaded.spec)
    return loaded


def _follow(opened: Opened, submission: Submission, watcher: "_Watcher") -> int:
    """Show what the run writes down until it has ended; returns the supervisor's exit code."""
    running = start(submission)
    screen: Display = Lines(steps=None)
    if isinstance(opened, OpenedTraining):
        screen = display(steps=opened.derived.steps, step=view(opened.run).checkpoint or 0)
    with screen:
        return follow(running, lambda: watcher.look(running, screen))


class _Watcher:
    """From the run's files to the screen, and from the keyboard to the run."""

    def __init__(self, run: RunDir, interrupts: Interrupts, *, script: bool) -> None:
        self._events = Tail.from_now(run.path / contract.EVENTS_FILE)
        self._metrics = Tail.from_now(run.path / contract.METRICS_FILE)
        self._interrupts = interrupts
        self._passed_on = 0
        self._started: Record = {}
        self._recent: deque[Record] = deque(maxlen=RECENT)
        self._log = _from_now(run) if script else None  # a script speaks for itself

    def look(self, running: Running, screen: Display) -> None:
        for event in self._events.records(is_event):
            self._started = event if event["kind"] == "started" else self._started
            if line := describe.event(event):
                screen.note(line)
        for line in self._log.lines(ended=False) if self._log else ():
            screen.note(output.printable(line))
        for record in self._metrics.records(is_metrics) if not self._log else ():
            self._recent.append(record)
            screen.step(record, left=seconds_left(self._started, self._recent, record["step"]))
        if len(self._interrupts.received) > self._passed_on:
            screen.note("stopping at once" if self._passed_on else "saving … (once more stops it at once)")
            self._passed_on = len(self._interrupts.received)
            running.stop()


def _from_now(run: RunDir) -> LogView:
    """The log of the first worker, without what earlier launches printed."""
    log = LogView(run, rank=0, tail=0 if run.log(0).exists() else None)
    list(log.lines())
    return log


def end(run: RunDir, code: int, interrupts: Interrupts, *, seconds: float) -> int:
    """Tell how it ended; the exit code, or the error that says it."""
    if interrupts.received and run.exit() is None:
        exit = Exit(state="paused", code=contract.EXIT_SAVED, step=None, reason="stopped before training began")
    else:
        exit = ending(run, code)
    if exit.state == "failed":
        raise _failure(run, exit)
    print(output.pairs(describe.ending(run, exit, seconds=seconds)), flush=True)
    if exit.code == contract.EXIT_DONE:
        return contract.EXIT_DONE
    if interrupts.received:
        return contract.EXIT_INTERRUPTED if interrupts.received[0] == signal.SIGINT else contract.EXIT_SAVED
    if _stopped_by_another(run):
        return contract.EXIT_DONE
    raise SavedForLater(f"run '{run.name}' has paused", remedy=exit.remedy or "The same command goes on")


def _failure(run: RunDir, exit: Exit) -> UserError | RunFailed:
    if exit.code == contract.EXIT_USER:
        return UserError(exit.reason, remedy=exit.remedy)
    if exit.rank is not None:
        print(f"the end of the log of worker {exit.rank}:")
        for line in last_lines(run.log(exit.rank), LOG_LINES):
            print(f"  | {output.printable(line)}")
    return RunFailed(f"run '{run.name}' failed: {exit.reason}", remedy=exit.remedy)


def _stopped_by_another(run: RunDir) -> bool:
    """`stoker stop` told the supervisor to, not this command: then the run ends as asked."""
    kinds = [event["kind"] for event in run.events()]
    last_attempt = kinds[::-1][: kinds[::-1].index("world") + 1] if "world" in kinds else []
    return "stopping" in last_attempt
