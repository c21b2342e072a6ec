"""`stoker events`: what happened to a run, one line each, in words."""

import argparse
import json
import time

from stoker.cli import output
from stoker.cli.places import runs_argument
from stoker.observe.runs import find
from stoker.observe.tail import Tail
from stoker.rundir import Record
from stoker.spec import contract

POLL = 0.2  # seconds between two looks at the run
HEAD = ("time", "kind", "rank", "host")  # what every event has


def events_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on showing what happens, until the run ends")
    parser.add_argument("--json", action="store_true", help="print each as a line of JSON")


def events(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    tail = Tail(run.path / contract.EVENTS_FILE)
    while True:
        live = args.follow and run.holder() is not None  # before reading: all that was written before the end is read
        for record in tail.records():
            line = json.dumps(record) if args.json else f"{output.moment(record['time'])}  {words(record)}"
            print(line, flush=args.follow)
        if not live:
            return contract.EXIT_DONE
        time.sleep(POLL)


def words(record: Record) -> str:
    """One line for any event; of a kind that is not known here, all that it says."""
    try:
        text = _of_the_run(record) or _of_a_step(record)
    except (KeyError, TypeError, ValueError):
        text = None  # written by another version
    if text is None:
        rest = "  ".join(f"{key}={value}" for key, value in record.items() if key not in HEAD)
        text = f"{record['kind']}: {rest}" if rest else str(record["kind"])
    return " ".join(output.printable(text).split())


def _of_the_run(record: Record) -> str | None:
    kind = record["kind"]
    if kind == "note":
        return str(record["text"])
    if kind == "world":
        workers = record["workers"]
        return f"attempt {record['attempt']} with {workers} worker{'s' * (workers != 1)}"
    if kind == "started":
        end = f"until step {record['steps']:,}" if record.get("steps") else "until its time is over"
        return f"training on {record['chip']}, {output.number(record['parameters'])} parameters, {end}"
    if kind == "changed":
        return "changed " + ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in record["changes"].items())
    if kind == "stopping":
        return f"asked to save and end ({record['signal']})"
    if kind == "failed":
        how = f"was killed by {record['signal']}" if record["signal"] else f"ended with code {record['code']}"
        where = "" if record.get("script") else " from the last checkpoint"
        next_thing = f"; starting again{where}" if record["again"] else ""
        return f"worker {record['rank']} {how}{next_thing}"
    return None


def _of_a_step(record: Record) -> str | None:
    kind, step = record["kind"], record.get("step")
    if kind == "resumed":
        return f"resumed at step {step}"
    if kind == "waiting":
        return f"step {step} waits for its data: it is still being prepared"
    if kind == "checkpoint":
        return f"saved step {step} in {record['seconds']:.1f} s"
    if kind == "checkpoint failed":
        return f"the checkpoint of step {step} could not be saved ({record['reason']}); training goes on"
    if kind == "fallback":
        return f"the checkpoint of step {step} is damaged ({record['reason']}); the one before it is used"
    if kind == "skipped":
        return f"step {step} was skipped: its gradients were not finite"
    if kind == "sample":
        return f"after step {step} it writes: {record['text']}"
    if kind in ("paused", "finished"):
        return f"{kind} at step {step}: {record['reason']}"
    return None
