"""`stoker status`: the state of a run, or of all."""

import argparse
import json
import shlex
from dataclasses import asdict

from stoker.backends import backend_of
from stoker.backends.backend import Details
from stoker.cli import output
from stoker.cli.arguments import runs_argument, trust_argument
from stoker.cli.ps import steps, table
from stoker.diagnose.diagnose import NEEDS_EXPLANATION, Diagnosis, as_record
from stoker.diagnose.finding import Finding
from stoker.observe.runs import find
from stoker.observe.why import why as explain
from stoker.rundir import RunDir
from stoker.rundir.state import RunState
from stoker.rundir.view import RunView
from stoker.spec import contract
from stoker.spec.errors import StokerError
from stoker.spec.units import short_duration, short_number


def status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run's name or folder; all runs when left out")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    trust_argument(parser)


def status(args: argparse.Namespace) -> int:
    if args.run is None:
        print(table(args.runs, as_json=args.json))
        return contract.EXIT_DONE
    run = find(args.run, args.runs)
    backend = backend_of(run)
    view = backend.view(run)
    why = _why(run) if view.state in NEEDS_EXPLANATION else None
    if args.json:
        print(json.dumps(asdict(view) | {"why": as_record(why) if why else None}))
        return contract.EXIT_DONE
    print(output.pairs(_rows(view, why.causes[0] if why and why.causes else None)))
    if text := _details(backend.details(view)):
        print(text)
    return contract.EXIT_DONE


def _why(run: RunDir) -> Diagnosis | None:
    """None if the user may not read enough of the cluster: the status is shown without a cause."""
    try:
        return explain(run, brief=True)
    except StokerError:
        return None


def _details(details: Details) -> str:
    parts = [output.pairs([(label, output.printable(value)) for label, value in details.rows])] if details.rows else []
    if table := details.table:
        cells = [tuple(map(output.printable, row)) for row in table.rows]
        parts.append("\n" + output.table(table.head, cells) + (f"\n{table.note}" if table.note else ""))
    return "\n".join(parts)


def _rows(view: RunView, why: Finding | None) -> list[tuple[str, str]]:
    state = output.painted(view.state)
    rows = [("run", view.name), ("state", f"{state}: {output.printable(view.reason)}" if view.reason else state)]
    if why and why.cause != view.reason:
        rows.append(("why", output.printable(why.cause)))
    if remedy := why.remedy if why else view.remedy:
        rows.append(("remedy", output.printable(remedy)))
    rows += [("step", steps(view)), ("loss", output.loss(view.loss)), ("val loss", output.loss(view.val_loss))]
    if view.tokens_per_second:
        rows.append(("speed", f"{short_number(view.tokens_per_second)} tokens/s"))
    if view.seconds_left is not None:
        rows.append(("left", short_duration(view.seconds_left)))
    if view.workers:
        rows.append(("workers", str(view.workers)))
    rows.append(("checkpoint", "none yet" if view.checkpoint is None else f"step {view.checkpoint}"))
    rows.append(("restarts", str(view.restarts)))
    if view.updated:
        rows.append(("updated", output.moment(view.updated)))
    if view.state in (RunState.PAUSED, RunState.INTERRUPTED) and not remedy:
        command = f"stoker launch {shlex.quote(view.folder)}"
        rows.append(("resume", f"run the same stoker train command again, or in the background: {command}"))
    if view.skipped:
        rows.append(("skipped", f"{view.skipped} record{'s' * (view.skipped != 1)} that could not be read"))
    return [*rows, ("folder", view.folder)]
