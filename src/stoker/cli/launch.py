"""`stoker launch`: start a run in the background, or go on with one; it outlives the terminal."""

import argparse
import importlib
import shlex
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.api.opening import OpenedTraining, begin
from stoker.api.origins import as_asked
from stoker.api.run import unique_name
from stoker.api.running import await_start, ending, plan, start
from stoker.cli import describe, launched, output
from stoker.cli.interrupts import Interrupts
from stoker.cli.places import path, runs_argument, trust_argument
from stoker.cli.progress import preparing
from stoker.cli.train import end, file_and_words, own_file
from stoker.data.prepare import ignore
from stoker.launch.backend import Submission
from stoker.observe.runs import find
from stoker.rundir import RunDir, consent
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import AnySpec
from stoker.storage.mirror import run_dir

ELSEWHERE = {"kubernetes": "stoker.cli.launch_cluster"}
"""What launches runs that do not live here; heavy, so by name."""


def launch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RUN.yaml|RUN key=value",
        help="a run file for a new run, or a run to go on with; and values that overrule it",
    )
    runs_argument(parser)
    trust_argument(parser)
    parser.add_argument("--new", action="store_true", help="start another run like RUN instead of going on with it")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument(
        "-o",
        "--output",
        type=path,
        metavar="DIR",
        help="with --dry-run, on Kubernetes: write each object to a file there",
    )
    parser.add_argument("--json", action="store_true", help="print what was started as JSON, and nothing else")


def launch(args: argparse.Namespace) -> int:
    spec, runs = _wanted(args)
    spec = as_asked(spec, runs=runs)
    if args.output and not (args.dry_run and spec.on.kind in ELSEWHERE):
        raise UserError("-o writes Kubernetes objects", remedy="Use it with --dry-run and on.kind=kubernetes")
    if spec.on.kind in ELSEWHERE:
        module: Any = importlib.import_module(ELSEWHERE[spec.on.kind])
        return int(module.launch(args, spec, runs))
    run = RunDir(runs / spec.name)
    submission = plan(spec, run)
    if not args.json:
        print(output.pairs(describe.plan(spec, submission, run_dir(run.path))), flush=True)
    if args.dry_run:
        print(_dry(run, submission, as_json=args.json))
        return contract.EXIT_DONE
    with Interrupts() as interrupts:
        with nullcontext(ignore) if args.json else preparing() as progress:
            opened = begin(spec, runs=runs, progress=progress)
        if done := opened.done:
            print(launched.as_json(run, asdict(done)) if args.json else describe.already_done(run, spec, done))
            return contract.EXIT_DONE
        if isinstance(opened, OpenedTraining) and not args.json:
            print(output.pairs(describe.goal(opened)), flush=True)
        interrupts.hold()  # from here on there is a run, and its name must be told
        began = time.monotonic()
        code = await_start(run, start(submission, detached=True))
        if code is not None:
            return _ended(run, code, seconds=time.monotonic() - began, as_json=args.json)
        print(_started(run, as_json=args.json), flush=True)
        return contract.EXIT_DONE


def _wanted(args: argparse.Namespace) -> tuple[AnySpec, Path]:
    """The spec, and the folder that its run is or will be in."""
    first, words = file_and_words(args.words, verb="launch")
    if first is None or _is_file(Path(first)):
        return unique_name(own_file(first, words).launchable, args.runs), args.runs
    run = find(first, args.runs)
    spec = load(run.path / contract.SPEC_FILE, words).launchable
    consent.require_launch(run, spec)
    if args.new:
        return unique_name(spec, args.runs), args.runs
    if any(word.startswith("name=") for word in words):
        raise UserError(
            f"run '{run.name}' keeps its name", remedy=f"Start another like it with: stoker launch {first} --new"
        )
    if holder := run.holder():
        raise UserError(
            f"run '{run.name}' runs already: process {holder['pid']} on {holder['host']}",
            remedy=f"Watch it with: stoker logs {first} -f, or stop it first with: stoker stop {first}",
        )
    return spec.model_copy(update={"name": run.name}), run.path.parent


def _is_file(word: Path) -> bool:
    """A run file, or what is named like one; a run is a folder, or a name."""
    return word.suffix in (".yaml", ".yml") or (word.exists() and not word.is_dir())


def _dry(run: RunDir, submission: Submission, *, as_json: bool) -> str:
    if not as_json:
        return output.pairs([("command", shlex.join(submission.argv))])
    facts = {"workers": submission.workers, "device": submission.device, "command": submission.argv}
    return launched.as_json(run, facts)


def _started(run: RunDir, *, as_json: bool) -> str:
    if as_json:
        return launched.as_json(run, {"state": "running", "pid": (run.holder() or {}).get("pid")})
    return launched.started(run, "in the background", watch=("stoker logs {} -f", "stoker ps --watch"))


def _ended(run: RunDir, code: int, *, seconds: float, as_json: bool) -> int:
    """It ended before anybody could see it run."""
    if not as_json:
        return end(run, code, Interrupts(), seconds=seconds)
    exit = ending(run, code)
    print(launched.as_json(run, asdict(exit)))
    return exit.code
