"""`stoker scale`: change the number of nodes of a run in a cluster while it runs."""

import argparse
import json
from dataclasses import asdict

from stoker.backends import backend_of
from stoker.backends.backend import Message
from stoker.cli.arguments import runs_argument, trust_argument
from stoker.cli.interrupts import Interrupts
from stoker.observe.runs import find
from stoker.spec import contract

SCALED = {
    "unchanged": "run '{run}' has {nodes} already",
    "live": "run '{run}' is scaled from {was} to {nodes}: its workers save, and resume with the nodes that are ready",
    "resubmitted": "run '{run}' has saved, and resumes with {nodes}",
}


def scale_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument("nodes", metavar="NODES", help="the number of nodes: 3, or a range: 1..4")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    trust_argument(parser)


def scale(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    message: Message = (lambda _: None) if args.json else _message
    with Interrupts() as interrupts:  # if it were interrupted between two jobs, the run would not resume by itself
        scaled = backend_of(run).scale(run, args.nodes, message=message, committed=interrupts.hold)
    if args.json:
        print(json.dumps({"name": run.name, "folder": str(run.path)} | asdict(scaled)))
        return contract.EXIT_DONE
    nodes = f"{scaled.nodes} node{'s' * (scaled.nodes != '1')}"
    print(SCALED[scaled.how].format(run=run.name, was=scaled.was, nodes=nodes))
    return contract.EXIT_DONE


def _message(line: str) -> None:
    print(line, flush=True)
