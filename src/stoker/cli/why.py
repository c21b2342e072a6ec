"""`stoker why`: why a run waits, fails, hangs or is slow, in one line with what to type."""

import argparse
import json
from dataclasses import asdict

from stoker.backends import backend_of
from stoker.cli import output
from stoker.cli.arguments import runs_argument, trust_argument
from stoker.diagnose.diagnose import Diagnosis, as_record
from stoker.diagnose.finding import Finding
from stoker.observe.runs import find
from stoker.observe.why import why as explain
from stoker.rundir import RunDir
from stoker.rundir.commands import command_name
from stoker.rundir.state import RunState
from stoker.spec import contract

FINE = {
    RunState.RUNNING: "nothing is wrong: it is running",
    RunState.DONE: "nothing is wrong: it is done",
    RunState.PAUSED: "nothing is wrong: it was stopped. Resume it with: stoker launch {run}",
}


def why_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("--all", action="store_true", help="all causes that match, the root cause first")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print it as JSON")
    form.add_argument("--facts", action="store_true", help="print the facts that causes are derived from, as JSON")
    trust_argument(parser)


def why(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    if args.facts:
        print(json.dumps(asdict(backend_of(run).facts(run, brief=False))))
        return contract.EXIT_DONE
    diagnosis = explain(run)
    if args.json:
        print(json.dumps({"run": run.name, "state": diagnosis.state} | as_record(diagnosis)))
        return contract.EXIT_DONE
    causes = diagnosis.causes if args.all else diagnosis.causes[:1]
    print("\n".join(_line(diagnosis.state, cause) for cause in causes) or _fine(run, diagnosis))
    return contract.EXIT_DONE


def _line(state: RunState, finding: Finding) -> str:
    return output.printable(f"{state}: {finding.cause}. {finding.remedy}")


def _fine(run: RunDir, diagnosis: Diagnosis) -> str:
    text = FINE.get(diagnosis.state, f"{diagnosis.state}: no known cause matches. See: stoker events {{run}}")
    unread = f" (its records cannot be read: {output.printable(diagnosis.unread)})" if diagnosis.unread else ""
    return text.format(run=command_name(run)) + unread
