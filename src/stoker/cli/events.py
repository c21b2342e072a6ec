"""`stoker events`: what happened to a run, one line each, in words."""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from stoker.cli import output
from stoker.cli.places import runs_argument, trust_argument
from stoker.observe.runs import find
from stoker.observe.tail import Tail
from stoker.rundir import Record
from stoker.rundir.records import in_words, is_event
from stoker.spec import contract
from stoker.spec.derive import ShortSchedule

ELSEWHERE = "stoker.cli.watch_cluster"  # for runs that do not live here; heavy, so by name
POLL = 0.2  # seconds between two looks at the run
SHOWN = 8  # numbers of a list
HEAD = ("time", "kind", "rank", "host")  # what every event has


def events_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on showing what happens, until the run ends")
    parser.add_argument("--json", action="store_true", help="print each as a line of JSON")
    trust_argument(parser)


def events(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    if run.place_ref():
        elsewhere: Any = importlib.import_module(ELSEWHERE)
        code: int = elsewhere.events(run, follow=args.follow, show=lambda record: _show(record, args))
        return code
    tail = Tail(run.path / contract.EVENTS_FILE)
    while True:
        live = args.follow and run.holder() is not None  # before reading: all that was written before the end is read
        for record in tail.records(is_event):
            _show(record, args)
        if not live:
            break
        time.sleep(POLL)
    say_skipped({contract.EVENTS_FILE: tail.skipped})
    return contract.EXIT_DONE


def say_skipped(skipped: Mapping[str, int]) -> None:
    """On stderr, where it does not mix with the records that were asked for."""
    if words := in_words(skipped):
        print(f"records that could not be read were skipped: {words}", file=sys.stderr)


def _show(record: Record, args: argparse.Namespace) -> None:
    line = json.dumps(record) if args.json else f"{output.moment(record['time'])}  {words(record)}"
    print(line, flush=args.follow)


def words(record: Record) -> str:
    """One line for any event; of a kind that is not known here, all that it says."""
    try:
        text = _of_the_run(record) or _of_the_nodes(record) or _of_a_step(record)
    except (KeyError, TypeError, ValueError):
        text = None  # written by another version
    if text is None:
        rest = "  ".join(f"{key}={value}" for key, value in record.items() if key not in HEAD)
        text = f"{record['kind']}: {rest}" if rest else str(record["kind"])
    return " ".join(output.printable(text).split())


def _of_the_run(record: Record) -> str | None:
    kind = record["kind"]
    if kind in ("note", "gave up"):
        return str(record["text"])
    if kind == "cluster":
        often = f" ({record['times']} times)" if record["times"] > 1 else ""
        return f"{record['object']}: {record['reason']}: {record['text']}{often}"
    if kind == "world":
        workers = record["workers"]
        nodes = len(record.get("nodes", ()))
        where = f" on {nodes} node{'s' * (nodes != 1)}" if nodes else ""
        return f"attempt {record['attempt']} with {workers} worker{'s' * (workers != 1)}{where}"
    if kind == "started":
        end = f"until step {record['steps']:,}" if record.get("steps") else "until its time is over"
        return f"training on {record['chip']}, {output.number(record['parameters'])} parameters, {end}"
    if kind == "short schedule":
        return str(ShortSchedule(**{field.name: record[field.name] for field in fields(ShortSchedule)}))
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


def _of_the_nodes(record: Record) -> str | None:
    kind = record["kind"]
    if kind == "waiting" and "missing" in record:
        missing, least, most = record["missing"], record["least"], record["most"]
        named = ", ".join(map(str, missing[:SHOWN])) + (f" and {len(missing) - SHOWN} more" if missing[SHOWN:] else "")
        needed = str(most) if least == most else f"{least}..{most}"
        return f"waiting for node {named}: {len(record['here'])} of {needed} are there"
    if kind == "regrouping":
        return f"asked to save, then goes on with other nodes: {record['reason']}"
    if kind == "scaled":
        return f"scaled from {record['was']} to {record['nodes']} node{'s' * (record['nodes'] != '1')}"
    if kind in ("lost", "left"):
        place = f"pod {record['pod']}" if record.get("pod") else record["host"]
        return f"node {record['node']} ({place}) {'was lost' if kind == 'lost' else 'has left'}"
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
        return f"the checkpoint of step {step} could not be saved: {record['reason']}"
    if kind == "fallback":
        return f"the checkpoint of step {step} is damaged ({record['reason']}); the one before it is used"
    if kind == "skipped":
        return f"step {step} was skipped: its gradients were not finite"
    if kind == "sample":
        return f"after step {step} it writes: {record['text']}"
    if kind in ("paused", "finished"):
        return f"{kind} at step {step}: {record['reason']}"
    return None
