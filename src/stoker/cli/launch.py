"""`stoker launch`: start a run in the background, or resume one. It outlives the terminal."""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

from stoker.api.launch import await_start, plan
from stoker.api.launch import launch as launch_plan
from stoker.api.run import copied_spec, read_spec, resumed_spec, unique_name
from stoker.cli import output, summary
from stoker.cli.arguments import file_and_overrides, path, runs_argument, trust_argument
from stoker.cli.interrupts import Interrupts
from stoker.cli.launch_display import JsonListener, ProgressListener, dry_run, launched_json, plan_rows, started
from stoker.cli.train import end
from stoker.observe.runs import find
from stoker.rundir import RunDir
from stoker.rundir.view import how_it_ended
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.load import Loaded
from stoker.spec.run import AnySpec
from stoker.spec.user_config import config_file


def launch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="RUN.yaml|RUN key=value",
        help="a run file for a new run, or a run to resume; and overrides",
    )
    runs_argument(parser)
    trust_argument(parser)
    parser.add_argument("--new", action="store_true", help="start another run like RUN instead of resuming it")
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
    spec, runs, config = _spec(args)
    planned = plan(spec, runs=runs, message=_message, offline=args.dry_run)
    run = planned.run
    if args.output and not (args.dry_run and planned.submission.objects):
        raise UserError("-o writes Kubernetes objects", remedy="Use it with --dry-run and on.kind=kubernetes")
    if not args.json:  # a dry run prints only the objects to stdout, for `kubectl apply -f -`
        only_objects = args.dry_run and planned.submission.objects
        print(output.pairs([*plan_rows(planned), *config]), flush=True, file=sys.stderr if only_objects else sys.stdout)
    if args.dry_run:
        print(dry_run(planned, folder=args.output, as_json=args.json))
        return contract.EXIT_DONE
    with Interrupts() as interrupts, _listener(args, interrupts) as listener:
        launched = launch_plan(planned, listener=listener)
        if done := launched.done:
            print(launched_json(run, asdict(done)) if args.json else summary.already_done(run, launched.spec, done))
            return contract.EXIT_DONE
        assert launched.running is not None, "it was submitted"
        began = time.monotonic()
        code = await_start(run, launched.running)
        if code is not None:
            return _ended(run, code, seconds=time.monotonic() - began, as_json=args.json)
        print(started(run, launched.running, as_json=args.json), flush=True)
        return contract.EXIT_DONE


def _message(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _listener(args: argparse.Namespace, interrupts: Interrupts) -> JsonListener:
    return JsonListener(interrupts) if args.json else ProgressListener(interrupts)


def _spec(args: argparse.Namespace) -> tuple[AnySpec, Path, list[tuple[str, str]]]:
    """The spec, the folder of the runs that its run is in, and rows for the values of the user's config file."""
    first, overrides = file_and_overrides(args.arguments, verb="launch")
    if first is None or _is_file(Path(first)):
        loaded = read_spec(first, overrides)
        return unique_name(loaded.launchable, args.runs), args.runs, _config_rows(loaded)
    run = find(first, args.runs)
    if args.new:
        return unique_name(copied_spec(run, overrides), args.runs), args.runs, []
    return resumed_spec(run, overrides), run.path.parent, []


def _config_rows(loaded: Loaded) -> list[tuple[str, str]]:
    values = ", ".join(f"{key}={value}" for key, value in loaded.from_user_config.items())
    return [("config", f"{values} from {config_file()}")] if values else []


def _is_file(path: Path) -> bool:
    """Whether it is a run file, or is named like one. A run is a folder, or a name."""
    return path.suffix in (".yaml", ".yml") or (path.exists() and not path.is_dir())


def _ended(run: RunDir, code: int, *, seconds: float, as_json: bool) -> int:
    """Report a run that ended while it was being started."""
    if not as_json:
        return end(run, code, Interrupts(), seconds=seconds)
    exit = how_it_ended(run, code)
    print(launched_json(run, asdict(exit)))
    return exit.code
