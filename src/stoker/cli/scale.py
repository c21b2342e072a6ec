"""`stoker scale`: more nodes or fewer for a run in a cluster, while it runs."""

import argparse
import importlib
import json
from collections.abc import Callable
from dataclasses import asdict

from stoker.cli.interrupts import Interrupts
from stoker.cli.places import runs_argument, trust_argument
from stoker.launch.scaling import Send
from stoker.launch.scaling import scale as scale_run
from stoker.observe.runs import find
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.run import AnySpec

TOLD = {
    "unchanged": "run '{run}' has {nodes} already",
    "live": "run '{run}' is scaled from {was} to {nodes}: its workers save, and go on with all that are there",
    "resubmitted": "run '{run}' has saved, and goes on with {nodes}",
}


def scale_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument("nodes", metavar="NODES", help="how many nodes: 3, or from one number to another: 1..4")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    trust_argument(parser)


def scale(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    say: Callable[[str], None] = (lambda _: None) if args.json else _say
    with Interrupts() as interrupts:  # a run between two jobs would not go on by itself
        done = scale_run(run, args.nodes, anew=_anew, say=say, committed=interrupts.hold)
    if args.json:
        print(json.dumps({"name": run.name, "folder": str(run.path)} | asdict(done)))
        return contract.EXIT_DONE
    nodes = f"{done.nodes} node{'s' * (done.nodes != '1')}"
    print(TOLD[done.how].format(run=run.name, was=done.was, nodes=nodes))
    return contract.EXIT_DONE


def _anew(spec: AnySpec, run: RunDir) -> Send:
    """By name: what prepares data comes with it, and a core install does without where a job can be changed."""
    send: Send = importlib.import_module("stoker.api.cluster").anew(spec, run)
    return send


def _say(line: str) -> None:
    print(line, flush=True)
