"""`stoker logs`: what the workers printed."""

import argparse
import importlib
import json
import os
import re
import select
import sys
import time
from dataclasses import asdict
from datetime import datetime, timedelta
from datetime import time as clock
from typing import Any

from stoker.cli.places import runs_argument, trust_argument
from stoker.cli.screen import show
from stoker.observe.logs import LogView, ranks
from stoker.observe.runs import find
from stoker.rundir import PlaceRef, RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.units import duration

POLL = 0.2  # seconds between two looks at the run


def logs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=0, metavar="N", help="the worker whose log to show (0)")
    which.add_argument("--all", action="store_true", help="all workers in the order of time, each line with its rank")
    parser.add_argument("-f", "--follow", action="store_true", help="go on showing what is added, until the run ends")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines of each log")
    parser.add_argument("--since", metavar="TIME", help="only lines from the last 10m, 2h … or since 14:30, 2026-11-15")
    parser.add_argument("--json", action="store_true", help="print each as a line of JSON: time, rank, line")
    parser.add_argument("--while-heard", action="store_true", help=argparse.SUPPRESS)  # -f ends when stdin does
    trust_argument(parser)


def logs(args: argparse.Namespace) -> int:
    if args.tail is not None and args.tail < 0:
        raise UserError(f"--tail is {args.tail}", remedy="Give the number of lines, such as --tail 20")
    since = None if args.since is None else moment(args.since, now=datetime.now())
    run = find(args.run, args.runs)
    if ref := run.place_ref():
        return _from_a_cluster(args, run, ref, since)
    view = LogView(run, rank=None if args.all else args.rank, tail=args.tail, since=since)
    if not ranks(run) and not args.follow:
        raise UserError(
            f"run '{run.name}' has no logs yet", remedy="Its workers have not started; wait for them with -f"
        )
    lines = 0
    while True:
        running = run.holder() is not None  # before reading: all that was written before the end is read
        for one in view.records(ended=not running):
            lines += 1
            show(json.dumps(asdict(one)) if args.json else view.words(one), flush=args.follow, colours=True)
        if not running or not args.follow or not _goes_on(args.while_heard):
            break
    return _end(args, lines)


def _goes_on(while_heard: bool) -> bool:
    """After a pause. A follower in a pod does not see that its user is gone, only that its stdin has ended."""
    if not while_heard:
        time.sleep(POLL)
        return True
    readable, _, _ = select.select([0], [], [], POLL)
    return not readable or os.read(0, 1 << 16) != b""


def _from_a_cluster(args: argparse.Namespace, run: RunDir, ref: PlaceRef, since: float | None) -> int:
    module: Any = importlib.import_module("stoker.observe.cluster_logs")  # its HTTP client is heavy
    rank = None if args.all else args.rank
    lines = module.cluster_logs(
        module.Remote(run, ref), rank=rank, follow=args.follow, tail=args.tail, since=since, now=time.time()
    )
    number = 0
    for one in lines:
        number += 1
        text = f"[{one.rank}] {one.line}" if args.all else one.line
        show(json.dumps(asdict(one)) if args.json else text, flush=args.follow, colours=True)
    return _end(args, number)


def _end(args: argparse.Namespace, lines: int) -> int:
    if not lines and not (args.since or args.tail == 0):
        print(f"nothing was printed; what happened is told by: stoker events {args.run}", file=sys.stderr)
    return contract.EXIT_DONE


def moment(text: str, *, now: datetime) -> float:
    """`10m` ago, or a time of day or date of this place, in seconds since 1970."""
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
            f"--since is '{text}', which is no time", remedy="Write 10m or 2h, 14:30, or 2026-11-15T14:30"
        ) from e
