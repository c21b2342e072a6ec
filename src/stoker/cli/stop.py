"""`stoker stop`: save and stop a run."""

import argparse
import json
from dataclasses import asdict

from stoker.backends import backend_of
from stoker.backends.backend import Message
from stoker.cli import output
from stoker.cli.arguments import runs_argument
from stoker.observe.runs import find
from stoker.rundir import RunDir
from stoker.rundir.commands import command_name
from stoker.rundir.state import RunState
from stoker.rundir.view import RunView
from stoker.spec import contract


def stop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print how it ended as JSON")


def stop(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    message: Message = (lambda _: None) if args.json else _message
    backend = backend_of(run)
    stopped = backend.stop(run)
    if stopped:
        message(f"asked run '{run.name}' to save and stop …")
        backend.await_stopped(run, message)
    view = backend.view(run)
    message(_ended(run, view) if stopped else f"run '{run.name}' is not running ({view.state})")
    if args.json:
        print(json.dumps(asdict(view) | {"stopped": stopped}))
    return contract.EXIT_DONE


def _ended(run: RunDir, view: RunView) -> str:
    if view.state is RunState.INTERRUPTED:
        saved = (
            "it has no checkpoint" if view.checkpoint is None else f"its last checkpoint is of step {view.checkpoint}"
        )
        return f"run '{run.name}' has stopped without recording why; {saved}"
    reason = f": {output.printable(view.reason)}" if view.reason else ""
    resume = "" if view.state is RunState.DONE else f"; resume it with: stoker launch {command_name(run)}"
    return f"run '{run.name}' is {view.state} at step {view.step}{reason}{resume}"


def _message(line: str) -> None:
    print(line, flush=True)
