"""`stoker events`: what happened to a run, one sentence per event."""

import argparse
import json
import sys

from stoker.backends import backend_of
from stoker.cli import output
from stoker.cli.arguments import runs_argument, trust_argument
from stoker.observe.runs import find
from stoker.rundir.events import Event
from stoker.rundir.records import skipped_summary
from stoker.spec import contract


def events_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new events until the run ends")
    parser.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    trust_argument(parser)


def events(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    for event in backend_of(run).events(run, follow=args.follow):
        line = json.dumps(event.record()) if args.json else f"{output.moment(event.time)}  {sentence(event)}"
        print(line, flush=args.follow)
    if skipped := skipped_summary(run.skipped):  # on stderr, so that stdout has only events
        print(f"records that could not be read were skipped: {skipped}", file=sys.stderr)
    return contract.EXIT_DONE


def sentence(event: Event) -> str:
    """On one line, whatever text it contains."""
    return " ".join(output.printable(event.sentence).split())
