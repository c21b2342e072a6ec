"""`stoker logs`: what the workers printed."""

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from datetime import datetime, timedelta
from datetime import time as clock

from stoker.backends import backend_of
from stoker.cli.arguments import runs_argument, trust_argument
from stoker.cli.screen import show
from stoker.observe.runs import find
from stoker.rundir.commands import command_name
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.units import duration

POLL_S = 0.2


def logs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--rank", type=int, default=0, metavar="N", help="the worker whose log to show (0)")
    selection.add_argument("--all", action="store_true", help="all workers, sorted by time, each line with its rank")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new lines until the run ends")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines of each log")
    parser.add_argument("--since", metavar="TIME", help="only lines from the last 10m, 2h … or since 14:30, 2026-11-15")
    parser.add_argument("--json", action="store_true", help="print each line as JSON: time, rank, line")
    trust_argument(parser)


def logs(args: argparse.Namespace) -> int:
    if args.tail is not None and args.tail < 0:
        raise UserError(f"--tail is {args.tail}", remedy="Give the number of lines, such as --tail 20")
    since = None if args.since is None else moment(args.since, now=datetime.now())
    run = find(args.run, args.runs)
    rank = None if args.all else args.rank
    lines = backend_of(run).logs(run, rank=rank, tail=args.tail, since=since, follow=args.follow, pause=_pause)
    count = 0
    for line in lines:
        count += 1
        text = f"[{line.rank}] {line.line}" if args.all else line.line
        show(json.dumps(asdict(line)) if args.json else text, flush=args.follow, colours=True)
    if not count and not (args.since or args.tail == 0):
        print(f"there are no log lines; see what happened: stoker events {command_name(run)}", file=sys.stderr)
    return contract.EXIT_DONE


def _pause() -> bool:
    time.sleep(POLL_S)
    return True


def moment(text: str, *, now: datetime) -> float:
    """`10m` (ago), or a local time of day or date, as seconds since 1970."""
    try:
        return now.timestamp() - float(str(duration(text)))
    except ValueError:
        pass
    try:
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
            today = datetime.combine(now.date(), clock.fromisoformat(text))
            return (today if today <= now else today - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except ValueError as e:
        raise UserError(
            f"--since is '{text}', which is not a time", remedy="Write 10m or 2h, 14:30, or 2026-11-15T14:30"
        ) from e
