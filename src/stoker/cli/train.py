"""`stoker train`: prepare, start, follow, and tell how it ended."""

import argparse
import signal
import time
from collections import deque
from pathlib import Path

from stoker import api
from stoker.cli import describe, output
from stoker.cli.interrupts import Interrupts
from stoker.cli.progress import Display, display, preparing
from stoker.launch.backend import Running, Submission
from stoker.observe.logs import last_lines
from stoker.observe.runs import RECENT, seconds_left, view
from stoker.observe.tail import Tail
from stoker.rundir import Exit, Record, RunDir
from stoker.spec import contract
from stoker.spec.errors import RunFailed, SavedForLater, UserError
from stoker.spec.load import load

LOG_LINES = 15


def train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="RUN.yaml key=value", help="the run file, and values that overrule it"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept (./runs)")
    parser.add_argument(
        "--new", action="store_true", help="start another run instead of going on with the one there is"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")


def train(args: argparse.Namespace) -> int:
    file, words = _file_and_words(args.words)
    spec = load(file, words).spec
    if args.new:
        spec = api.free_name(spec, args.runs)
    run = RunDir(args.runs / spec.name)
    submission = api.plan(spec, run)
    print(output.pairs(describe.plan(spec, submission, run)), flush=True)
    if args.dry_run:
        print(output.pairs([("command", " ".join(submission.argv))]))
        return contract.EXIT_DONE
    with Interrupts() as interrupts:
        watcher = _Watcher(run, interrupts)  # before anything is done, so that it sees all of it
        with preparing() as progress:
            opened = api.open_run(spec, runs=args.runs, progress=progress)
        if opened.done:
            print(f"run '{run.name}' is done: {opened.done.reason}. Raise until to go on, or start another with --new")
            return contract.EXIT_DONE
        print(output.pairs(describe.goal(opened)), flush=True)
        interrupts.hold()
        began = time.monotonic()
        code = _follow(opened, submission, watcher)
        return _end(run, code, interrupts, seconds=time.monotonic() - began)


def _file_and_words(words: list[str]) -> tuple[Path | None, list[str]]:
    if not words:
        raise UserError("train what?", remedy="Write: stoker train RUN.yaml, or let stoker init DATA write one")
    files = [word for word in words if "=" not in word or Path(word).is_file()]
    if len(files) > 1:
        raise UserError(f"{files[1]} is a second run file", remedy="Give one, and the rest as key=value")
    return Path(files[0]) if files else None, [word for word in words if word not in files]


def _follow(opened: api.Opened, submission: Submission, watcher: "_Watcher") -> int:
    """Show what the run writes down until it has ended; returns the supervisor's exit code."""
    running = api.submit(submission)
    with display(steps=opened.derived.steps, step=view(opened.run).checkpoint or 0) as screen:
        return api.follow(running, lambda: watcher.look(running, screen))


class _Watcher:
    """From the run's files to the screen, and from the keyboard to the run."""

    def __init__(self, run: RunDir, interrupts: Interrupts) -> None:
        self._events = Tail.from_now(run.path / contract.EVENTS_FILE)
        self._metrics = Tail.from_now(run.path / contract.METRICS_FILE)
        self._interrupts = interrupts
        self._passed_on = 0
        self._started: Record = {}
        self._recent: deque[Record] = deque(maxlen=RECENT)

    def look(self, running: Running, screen: Display) -> None:
        for event in self._events.records():
            self._started = event if event["kind"] == "started" else self._started
            if line := describe.event(event):
                screen.note(line)
        for record in self._metrics.records():
            self._recent.append(record)
            screen.step(record, left=seconds_left(self._started, self._recent, record["step"]))
        if len(self._interrupts.received) > self._passed_on:
            screen.note("stopping at once" if self._passed_on else "saving … (once more stops it at once)")
            self._passed_on = len(self._interrupts.received)
            running.stop()


def _end(run: RunDir, code: int, interrupts: Interrupts, *, seconds: float) -> int:
    if interrupts.received and run.exit() is None:
        exit = Exit(state="paused", code=contract.EXIT_SAVED, step=None, reason="stopped before training began")
    else:
        exit = api.ending(run, code)
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
