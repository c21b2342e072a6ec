"""`stoker why`: why a run waits, fails, stands still or is slow, in one line with what to type."""

import argparse
import json
from dataclasses import asdict

from stoker.cli import output
from stoker.cli.places import runs_argument, trust_argument
from stoker.launch.command_word import command_word
from stoker.observe.diagnose import Diagnosis, as_record, diagnose, gather
from stoker.observe.rules import Finding
from stoker.observe.runs import find
from stoker.rundir import RunDir
from stoker.spec import contract

FINE = {
    "running": "nothing is wrong: it runs",
    "done": "nothing is wrong: it is done",
    "paused": "nothing is wrong: it was stopped, and goes on with: stoker launch {run}",
}


def why_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("--all", action="store_true", help="all that fits, the deepest cause first")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print it as JSON")
    form.add_argument("--facts", action="store_true", help="print what is known of it, as JSON, without a verdict")
    trust_argument(parser)


def why(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    if args.facts:
        print(json.dumps(asdict(gather(run))))
        return contract.EXIT_DONE
    found = diagnose(run)
    if args.json:
        print(json.dumps({"run": run.name, "state": found.state} | as_record(found)))
        return contract.EXIT_DONE
    shown = found.causes if args.all else found.causes[:1]
    print("\n".join(_line(found.state, one) for one in shown) or _fine(run, found))
    return contract.EXIT_DONE


def _line(state: str, one: Finding) -> str:
    return output.printable(f"{state}: {one.cause}. {one.remedy}")


def _fine(run: RunDir, found: Diagnosis) -> str:
    text = FINE.get(found.state, f"{found.state}: nothing that is known here explains it. See: stoker events {{run}}")
    unread = f" (its records cannot be read: {output.printable(found.unread)})" if found.unread else ""
    return text.format(run=command_word(run)) + unread
