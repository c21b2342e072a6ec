"""`stoker ps`, `stoker status`, `stoker stop`: they read the run directory, so a core install is enough."""

import argparse
import importlib
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from stoker.cli import output
from stoker.cli.places import runs_argument, trust_argument
from stoker.launch.local import Local
from stoker.observe.diagnose import TROUBLED, Diagnosis, as_record, diagnose
from stoker.observe.rules import Finding
from stoker.observe.runs import RunRow, RunView, all_runs, find, view, view_anywhere
from stoker.observe.runs import rows as all_rows
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import RunFailed, StokerError, UserError

POLL = 0.2  # seconds between two looks at the run
WORD = 10.0  # seconds between two words of a command that waits
PATIENCE = 660.0  # seconds: a supervisor gives a save ten minutes, then ends its workers
AGAIN = 2.0  # seconds between two tables of --watch
ELSEWHERE = "stoker.cli.watch_cluster"  # for runs that do not live here; heavy, so by name
ENDED = ("done", "failed")
HEAD = ("RUN", "STATE", "STEP", "LOSS", "TOKENS/S", "LEFT", "WORKERS", "UPDATED")


def ps_arguments(parser: argparse.ArgumentParser) -> None:
    runs_argument(parser)
    watch_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def ps(args: argparse.Namespace) -> int:
    if args.watch is None:
        print(_list(args))
        return contract.EXIT_DONE
    output.repeat(lambda: _list(args), seconds=interval(args))
    return contract.EXIT_DONE


def watch_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=AGAIN,
        metavar="SECONDS",
        help="show it again every 2 seconds, or SECONDS",
    )


def interval(args: argparse.Namespace) -> float:
    if not 0 < args.watch < float("inf"):
        raise UserError(f"--watch is {args.watch:g}", remedy="Give the seconds between two looks, such as --watch 5")
    return float(args.watch)


def _list(args: argparse.Namespace) -> str:
    rows = all_rows(all_runs(args.runs))
    if args.json:
        return json.dumps([asdict(one) for one in rows])
    if not rows:
        return f"no runs in {args.runs.absolute()}. Start one with: stoker train RUN.yaml"
    watching = getattr(args, "watch", None) is not None
    lines = [output.moment(time.time())] if watching else []
    room = output.room() if watching else None
    if room is not None and len(rows) + 3 > room:  # the time, the head, and the line where the cursor stands
        lines[0] += f"  {len(rows)} runs, the last {max(1, room - 3)} of them:"
        rows = rows[-max(1, room - 3) :]
    notes = [f"{one.name}: {output.printable(one.reason)}" for one in rows if one.state == "unknown" and one.reason]
    unread = [one.name for one in rows if one.unread and one.state in ENDED]
    if unread:
        notes.append(f"≥: how far it came is not read yet; see: stoker status {unread[0]}")
    return "\n".join([*lines, output.table(HEAD, [_cells(one) for one in rows], states=1), *notes])


def _cells(one: RunRow) -> tuple[str, ...]:
    return (
        one.name,
        one.state,
        _steps(one),
        output.loss(one.loss),
        output.number(one.tokens_per_second) if one.tokens_per_second else "-",
        output.duration(one.seconds_left) if one.seconds_left is not None else "-",
        str(one.workers) if one.workers else "-",
        f"{output.duration(max(0.0, time.time() - one.updated))} ago" if one.updated else "-",
    )


def status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run's name or folder; all runs when left out")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    trust_argument(parser)


def status(args: argparse.Namespace) -> int:
    if not args.run:
        print(_list(args))
        return contract.EXIT_DONE
    run = find(args.run, args.runs)
    one = view_anywhere(run)
    why = _why(run) if one.state in TROUBLED else None
    if args.json:
        print(json.dumps(asdict(one) | {"why": as_record(why) if why else None}))
        return contract.EXIT_DONE
    print(output.pairs(_details(one, why.causes[0] if why and why.causes else None)))
    if run.place_ref():
        print(_elsewhere().details(one))
    return contract.EXIT_DONE


def _why(run: RunDir) -> Diagnosis | None:
    """What is known of it is shown, whether or not anybody may see more of the cluster."""
    try:
        return diagnose(run, brief=True)
    except StokerError:
        return None


def _details(one: RunView, why: Finding | None) -> list[tuple[str, str]]:
    state = output.painted(one.state)
    rows = [("run", one.name), ("state", f"{state}: {output.printable(one.reason)}" if one.reason else state)]
    if why and why.cause != one.reason:
        rows.append(("why", output.printable(why.cause)))
    if remedy := why.remedy if why else one.remedy:
        rows.append(("remedy", output.printable(remedy)))
    rows += [("step", _steps(one)), ("loss", output.loss(one.loss)), ("val loss", output.loss(one.val_loss))]
    if one.tokens_per_second:
        rows.append(("speed", f"{output.number(one.tokens_per_second)} tokens/s"))
    if one.seconds_left is not None:
        rows.append(("left", output.duration(one.seconds_left)))
    if one.workers:
        rows.append(("workers", str(one.workers)))
    rows.append(("checkpoint", "none yet" if one.checkpoint is None else f"step {one.checkpoint}"))
    rows.append(("restarts", str(one.restarts)))
    if one.updated:
        rows.append(("updated", output.moment(one.updated)))
    if one.state in ("paused", "interrupted") and not remedy:
        behind = f"stoker launch {shlex.quote(one.folder)}"
        rows.append(("go on", f"run the same stoker train command again, or in the background: {behind}"))
    if one.skipped:
        rows.append(("skipped", f"{one.skipped} record{'s' * (one.skipped != 1)} that could not be read"))
    return [*rows, ("folder", one.folder)]


def _steps(one: RunRow) -> str:
    """`≥`: as far as is known of a run that has ended since."""
    step = f"≥{one.step}" if one.unread and one.state in ENDED else str(one.step)
    return f"{step} of {one.steps}" if one.steps else step


def stop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print how it ended as JSON")


def stop(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    say: Callable[[str], None] = (lambda _: None) if args.json else _say
    if run.place_ref():
        code: int = _elsewhere().stop(run, say=say, as_json=args.json)
        return code
    stopped = Local().stop(run)
    if stopped:
        say(f"asked run '{run.name}' to save and end …")
        await_end(run, say=say)
        say(_how_it_ended(run))
    else:
        say(f"run '{run.name}' is not running ({view(run).state})")
    if args.json:
        print(json.dumps(asdict(view(run)) | {"stopped": stopped}))
    return contract.EXIT_DONE


def _elsewhere() -> Any:
    return importlib.import_module(ELSEWHERE)


def _say(line: str) -> None:
    print(line, flush=True)


def await_end(
    run: RunDir, *, word: float = WORD, patience: float = PATIENCE, say: Callable[[str], None] = _say
) -> None:
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
            say(
                f"waiting for its workers to save ({output.duration(waited)}); "
                f"to end it without: stoker stop {shlex.quote(str(run.path))}"
            )
        time.sleep(min(POLL, word))


def _how_it_ended(run: RunDir) -> str:
    exit = run.exit()
    if exit is None:
        return f"run '{run.name}' has ended without a word; its last checkpoint is of step {view(run).checkpoint}"
    at = f" at step {exit.step}" if exit.step is not None else ""
    further = f"; it goes on with: stoker launch {shlex.quote(str(run.path))}" if exit.state == "paused" else ""
    return f"run '{run.name}' is {exit.state}{at}: {output.printable(exit.reason)}{further}"
