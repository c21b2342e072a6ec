"""`stoker status`, `stoker logs`, `stoker stop`: they read the run directory, so a core install is enough."""

import argparse
import json
import shlex
import time
from dataclasses import asdict
from pathlib import Path

from stoker.cli import output
from stoker.launch.local import Local
from stoker.observe.logs import LogView, ranks
from stoker.observe.runs import RunView, all_runs, find, view
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import RunFailed, UserError

POLL = 0.2  # seconds between two looks at the run
WORD = 10.0  # seconds between two words of a command that waits
PATIENCE = 660.0  # seconds: a supervisor gives a save ten minutes, then ends its workers


def status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run's name or folder; all runs when left out")
    _runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def status(args: argparse.Namespace) -> int:
    if args.run:
        one = view(find(args.run, args.runs))
        print(json.dumps(asdict(one)) if args.json else output.pairs(_details(one)))
        return contract.EXIT_DONE
    views = [view(run) for run in all_runs(args.runs)]
    if args.json:
        print(json.dumps([asdict(one) for one in views]))
    elif views:
        print(output.table(("RUN", "STATE", "STEP", "LOSS", "VAL LOSS", "TOKENS/S", "LEFT"), [_row(v) for v in views]))
    else:
        print(f"no runs in {args.runs.absolute()}. Start one with: stoker train RUN.yaml")
    return contract.EXIT_DONE


def _row(one: RunView) -> tuple[str, ...]:
    return (
        one.name,
        one.state,
        _steps(one),
        output.loss(one.loss),
        output.loss(one.val_loss),
        output.number(one.tokens_per_second) if one.tokens_per_second else "-",
        output.duration(one.seconds_left) if one.seconds_left is not None else "-",
    )


def _details(one: RunView) -> list[tuple[str, str]]:
    rows = [("run", one.name), ("state", f"{one.state}: {one.reason}" if one.reason else one.state)]
    if one.remedy:
        rows.append(("remedy", one.remedy))
    rows += [("step", _steps(one)), ("loss", output.loss(one.loss)), ("val loss", output.loss(one.val_loss))]
    if one.tokens_per_second:
        rows.append(("speed", f"{output.number(one.tokens_per_second)} tokens/s"))
    if one.seconds_left is not None:
        rows.append(("left", output.duration(one.seconds_left)))
    rows.append(("checkpoint", "none yet" if one.checkpoint is None else f"step {one.checkpoint}"))
    rows.append(("restarts", str(one.restarts)))
    if one.state in ("paused", "interrupted") and not one.remedy:
        rows.append(("go on", "run the same stoker train command again"))
    return [*rows, ("folder", one.folder)]


def _steps(one: RunView) -> str:
    return f"{one.step} of {one.steps}" if one.steps else str(one.step)


def logs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    _runs_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=0, metavar="N", help="the worker whose log to show (0)")
    which.add_argument("--all", action="store_true", help="all workers, each line with its rank")
    parser.add_argument("-f", "--follow", action="store_true", help="go on showing what is added, until the run ends")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines of each log")


def logs(args: argparse.Namespace) -> int:
    if args.tail is not None and args.tail < 0:
        raise UserError(f"--tail is {args.tail}", remedy="Give the number of lines, such as --tail 20")
    run = find(args.run, args.runs)
    logs = LogView(run, rank=None if args.all else args.rank, tail=args.tail)
    if not ranks(run) and not args.follow:
        raise UserError(
            f"run '{run.name}' has no logs yet", remedy="Its workers have not started; wait for them with -f"
        )
    while True:
        live = args.follow and run.holder() is not None  # before reading: all that was written before the end is read
        for line in logs.lines():
            print(line, flush=args.follow)
        if not live:
            return contract.EXIT_DONE
        time.sleep(POLL)


def stop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    _runs_argument(parser)


def stop(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    if not Local().stop(run):
        print(f"run '{run.name}' is not running ({view(run).state})")
        return contract.EXIT_DONE
    print(f"asked run '{run.name}' to save and end …", flush=True)
    await_end(run)
    print(_how_it_ended(run))
    return contract.EXIT_DONE


def await_end(run: RunDir, *, word: float = WORD, patience: float = PATIENCE) -> None:
    """Wait for a run that was asked to end, with a line every `word` seconds."""
    began, said = time.monotonic(), 0.0
    while holder := run.holder():
        waited = time.monotonic() - began
        if waited > patience:
            raise RunFailed(
                f"run '{run.name}' has not ended in {output.duration(waited)}",
                remedy=f"End it without a save with: kill -9 {holder['pid']}; the same stoker train command then goes "
                "on from its last checkpoint",
            )
        if waited - said >= word:
            said = waited
            print(
                f"waiting for its workers to save ({output.duration(waited)}); "
                f"to end it without: stoker stop {shlex.quote(str(run.path))}",
                flush=True,
            )
        time.sleep(min(POLL, word))


def _how_it_ended(run: RunDir) -> str:
    exit = run.exit()
    if exit is None:
        return f"run '{run.name}' has ended without a word; its last checkpoint is of step {view(run).checkpoint}"
    at = f" at step {exit.step}" if exit.step is not None else ""
    further = "; the same stoker train command goes on" if exit.state == "paused" else ""
    return f"run '{run.name}' is {exit.state}{at}: {exit.reason}{further}"


def _runs_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept (./runs)")
