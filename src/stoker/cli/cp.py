"""`stoker cp`: copy files to and from the volume of a run in a cluster, or from a bucket to it."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from stoker.api import copy
from stoker.backends.kubernetes.volume.run_copy import weight_commands
from stoker.backends.transfer.meter import TransferProgress
from stoker.cli import output
from stoker.cli.arguments import path, runs_argument, trust_argument
from stoker.cli.progress.transfer import show_transfer
from stoker.observe.runs import find
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

EXAMPLES = """\
RUN:/path is a path on the run's volume, RUN:path one in the run's folder there. Run it again to continue after an
interruption.

  stoker cp my-run-x1y2: ./my-copy          the whole run and its token set: for audit, eval, generate, export ./my-copy
  stoker cp books/ notes.txt my-run-x1y2:/data/
  stoker cp my-run-x1y2:checkpoints/step-000001000 .
  stoker cp s3://bucket/set.tar my-run-x1y2:/data --extract --anonymous
"""


class VolumePath(NamedTuple):
    """RUN:path"""

    run: str
    path: str


def cp_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "arguments", nargs="+", metavar="FROM… TO", help="files and folders here, RUN:path, or s3://… gs://…"
    )
    runs_argument(parser)
    parser.add_argument("--no-tokens", action="store_true", help="copy a run without its token set")
    parser.add_argument("--extract", action="store_true", help="unpack the archive there (tar, tar.gz, zip)")
    parser.add_argument("--anonymous", action="store_true", help="read the bucket without credentials")
    parser.add_argument("--region", help="of the bucket, if it is not that of the pods")
    parser.add_argument("--json", action="store_true", help="print what was copied as JSON")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    trust_argument(parser)


def cp(args: argparse.Namespace) -> int:
    if len(args.arguments) < 2:
        raise UserError("cp needs a source and a target", remedy="Write: stoker cp FILE… RUN:/path, or the reverse")
    *sources, target = map(_parsed, args.arguments)
    urls = [source for source in sources if isinstance(source, str)]
    paths = [source for source in sources if isinstance(source, Path)]
    on_volumes = [source for source in sources if isinstance(source, VolumePath)]
    if (args.extract or args.anonymous or args.region) and not urls:
        raise UserError("--extract, --anonymous and --region are for s3://… and gs://…", remedy="Leave them out")
    if isinstance(target, VolumePath) and urls == sources:
        _fetch(args, urls, target)
    elif isinstance(target, VolumePath) and paths == sources:
        done = copy.upload(find(target.run, args.runs), paths, target.path, show=show_transfer)
        _report(args, done, f"{target.run}:{target.path}")
    elif isinstance(target, Path) and on_volumes == sources:
        _download(args, on_volumes, target)
    else:
        raise UserError(
            f"cp cannot copy from {' '.join(args.arguments[:-1])} to {args.arguments[-1]}",
            remedy="One side is RUN:/path; the other is here, or a bucket to copy from",
        )
    return contract.EXIT_DONE


def _download(args: argparse.Namespace, sources: list[VolumePath], target: Path) -> None:
    if len(sources) > 1 and not target.is_dir():
        raise UserError(f"{target} is not a folder", remedy=f"Create it with: mkdir -p {target}")
    for source in sources:
        run = find(source.run, args.runs)
        run_copy: RunDir | None = None
        for copied in copy.download(run, source.path, target, tokens=not args.no_tokens, show=show_transfer):
            run_copy = run_copy or copied.run
            if copied.progress:
                _report(args, copied.progress, str(copied.target))
            elif not args.json:
                print(f"{copied.target}: its token set is here already")
        for command in weight_commands(run_copy, run.name) if run_copy and not args.no_tokens else ():
            print(f"stoker: only replay needs the weights that it started from: {command}", file=sys.stderr)


def _fetch(args: argparse.Namespace, urls: list[str], target: VolumePath) -> None:
    options = [*(["--extract"] if args.extract else []), *(["--anonymous"] if args.anonymous else [])]
    options += ["--region", args.region] if args.region else []
    run = find(target.run, args.runs)
    for done in copy.fetch(run, urls, target.path, options=options, show=show_transfer):
        _report(args, done, f"{target.run}:{target.path}")


def _parsed(argument: str) -> Path | VolumePath | str:
    """A path here, a path on a volume, or a URL."""
    if "://" in argument:
        return argument
    run, colon, volume_path = argument.partition(":")
    if colon and run and not Path(argument).exists() and ("/" not in run or RunDir(Path(run)).exists()):
        return VolumePath(run, volume_path)
    return Path(os.path.expanduser(path(argument)))


def _report(args: argparse.Namespace, done: TransferProgress, target: str) -> None:
    if args.json:
        print(json.dumps({"to": target} | {key: asdict(done)[key] for key in ("done", "present", "files")}))
    else:
        before = f", {output.size(done.present)} of it copied before" if done.present else ""
        files = f" in {done.files:,} files" if done.files > 1 else ""
        print(f"{target}: {output.size(done.done)}{files}{before}, checked")
