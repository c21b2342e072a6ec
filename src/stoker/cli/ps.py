"""`stoker ps`: all runs, one line each."""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from stoker import backends
from stoker.cli import output
from stoker.cli.arguments import runs_argument
from stoker.observe.runs import all_runs
from stoker.rundir.state import RunState
from stoker.rundir.view import RunRow
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.units import short_duration, short_number

WATCH_EVERY_S = 2.0
HEAD = ("RUN", "STATE", "STEP", "LOSS", "TOKENS/S", "LEFT", "WORKERS", "UPDATED")


def ps_arguments(parser: argparse.ArgumentParser) -> None:
    runs_argument(parser)
    watch_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def ps(args: argparse.Namespace) -> int:
    if args.watch is None:
        print(table(args.runs, as_json=args.json))
        return contract.EXIT_DONE
    output.repeat(lambda: table(args.runs, as_json=args.json, watching=True), seconds=interval(args))
    return contract.EXIT_DONE


def watch_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=WATCH_EVERY_S,
        metavar="SECONDS",
        help="refresh every 2 seconds, or every SECONDS",
    )


def interval(args: argparse.Namespace) -> float:
    if not 0 < args.watch < float("inf"):
        raise UserError(f"--watch is {args.watch:g}", remedy="Give the seconds between two refreshes: --watch 5")
    return float(args.watch)


def table(runs: Path, *, as_json: bool, watching: bool = False) -> str:
    """All runs in a folder. While `watching`, below the time and no longer than the terminal."""
    rows = backends.rows(all_runs(runs))
    if as_json:
        return json.dumps([asdict(row) for row in rows])
    if not rows:
        return f"no runs in {runs.absolute()}. Start one with: stoker train RUN.yaml"
    lines = [output.moment(time.time())] if watching else []
    height = output.terminal_lines() if watching else None
    if height is not None and len(rows) + 3 > height:  # also the time, the head, and the line of the cursor
        shown = max(1, height - 3)
        lines[0] += f"  the last {shown} of {len(rows)} runs:"
        rows = rows[-shown:]
    notes = [
        f"{row.name}: {output.printable(row.reason)}" for row in rows if row.state is RunState.UNKNOWN and row.reason
    ]
    unread = [row.name for row in rows if row.unread and row.state.is_finished]
    if unread:
        notes.append(f"≥: its last step is not read yet; see: stoker status {unread[0]}")
    return "\n".join([*lines, output.table(HEAD, [_cells(row) for row in rows], states=1), *notes])


def _cells(row: RunRow) -> tuple[str, ...]:
    return (
        row.name,
        row.state,
        steps(row),
        output.loss(row.loss),
        short_number(row.tokens_per_second) if row.tokens_per_second else "-",
        short_duration(row.seconds_left) if row.seconds_left is not None else "-",
        str(row.workers) if row.workers else "-",
        f"{short_duration(max(0.0, time.time() - row.updated))} ago" if row.updated else "-",
    )


def steps(row: RunRow) -> str:
    """`≥`: the last known step of a run that has ended since."""
    step = f"≥{row.step}" if row.unread and row.state.is_finished else str(row.step)
    return f"{step} of {row.steps}" if row.steps else step
