"""`stoker cp`: files between here and the volume of a run in a cluster, or from a bucket to it."""

import argparse
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from stoker.cli import output
from stoker.cli.carrying import transferring
from stoker.cli.places import runs_argument, trust_argument
from stoker.launch.transfer import client
from stoker.launch.transfer.meter import Progress
from stoker.launch.transfer.send import copied_item
from stoker.observe.run_copy import copied_to, copy_run, copy_tokens, run_named, weights_left
from stoker.observe.runs import find
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

HOW = """\
RUN:/path is a path on the run's volume, RUN:path one in the run's folder there. Run again after a cut, it goes on.

  stoker cp my-run-x1y2: ./my-copy          the whole run and its token set: for audit, eval, generate, export ./my-copy
  stoker cp books/ notes.txt my-run-x1y2:/data/
  stoker cp my-run-x1y2:checkpoints/step-000001000 .
  stoker cp s3://bucket/set.tar my-run-x1y2:/data --extract --anonymous
"""


class There(NamedTuple):
    run: str
    path: str


def cp_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="+", metavar="FROM… TO", help="files and folders here, RUN:path, or s3://… gs://…"
    )
    runs_argument(parser)
    parser.add_argument("--no-tokens", action="store_true", help="copy a run without the token set of its training")
    parser.add_argument("--extract", action="store_true", help="unpack the archive there (tar, tar.gz, zip)")
    parser.add_argument("--anonymous", action="store_true", help="read the bucket without credentials")
    parser.add_argument("--region", help="of the bucket, where it is not the pods' own")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = HOW
    trust_argument(parser)


def cp(args: argparse.Namespace) -> int:
    if len(args.words) < 2:
        raise UserError("cp needs what to copy and where to", remedy="Write: stoker cp FILE… RUN:/path, or the reverse")
    *sources, target = map(_parsed, args.words)
    urls = [one for one in sources if isinstance(one, str)]
    if (args.extract or args.anonymous or args.region) and not urls:
        raise UserError("--extract, --anonymous and --region are for s3://… and gs://…", remedy="Leave them out")
    if isinstance(target, There) and urls == sources:
        return _bring(args, urls, target)
    if isinstance(target, There) and all(isinstance(one, Path) for one in sources):
        return _upload(args, [one for one in sources if isinstance(one, Path)], target)
    if isinstance(target, Path) and all(isinstance(one, There) for one in sources):
        return _download(args, [one for one in sources if isinstance(one, There)], target)
    raise UserError(
        f"cp cannot go from {' '.join(args.words[:-1])} to {args.words[-1]}",
        remedy="One side is RUN:/path; the other is here, or a bucket to copy from",
    )


def _upload(args: argparse.Namespace, sources: list[Path], target: There) -> int:
    for path in sources:
        if not path.exists():
            raise UserError(f"there is no {path}", remedy="Name files and folders that are here")
    remote = _remote(args, target.run)
    into = _below(remote, target.path) + ("/" if len(sources) > 1 and not target.path.endswith("/") else "")
    items = [copied_item(path, into) for path in sources]
    with transferring("sending") as progress:
        done = client.upload(items, remote, progress)
    return _told(args, done, f"{target.run}:{target.path}")


def _download(args: argparse.Namespace, sources: list[There], target: Path) -> int:
    if len(sources) > 1 and not target.is_dir():
        raise UserError(f"{target} is no folder", remedy=f"Make it with: mkdir -p {target}")
    for source in sources:
        remote = _remote(args, source.run)
        path = _below(remote, source.path)
        if name := run_named(path):
            _copy_run(args, remote, name, target)
            continue
        with transferring("fetching") as progress:
            done = client.download(remote, path, target, progress)
        _told(args, done, str(target))
    return contract.EXIT_DONE


def _copy_run(args: argparse.Namespace, remote: Any, name: str, target: Path) -> None:
    """A whole run directory comes with all that audit, eval, generate and export need of it."""
    copy = copied_to(target, name)
    with transferring("fetching") as progress:
        done = copy_run(remote, name, copy, progress)
    _told(args, done, str(copy.path))
    if args.no_tokens:
        return
    with transferring("fetching its token set") as progress:
        for folder, fetched in copy_tokens(remote, copy, progress):
            if fetched:
                _told(args, fetched, str(folder))
            elif not args.json:
                print(f"{folder}: its token set is here already")
    for command in weights_left(copy, name):
        print(f"stoker: only replay needs the weights that it began with: {command}", file=sys.stderr)


def _bring(args: argparse.Namespace, urls: list[str], target: There) -> int:
    remote = _remote(args, target.run, moving=True)
    words = [*(["--extract"] if args.extract else []), *(["--anonymous"] if args.anonymous else [])]
    words += ["--region", args.region] if args.region else []
    module: Any = importlib.import_module("stoker.launch.bringing")
    try:
        for url in urls:
            with transferring("fetching in the cluster") as progress:
                done = module.bring(remote, url, _below(remote, target.path), words, progress)
            _told(args, done, f"{target.run}:{target.path}")
    finally:
        remote.remove()
    return contract.EXIT_DONE


def _parsed(word: str) -> Path | There | str:
    """Something here, something on a volume, or a URL."""
    if "://" in word:
        return word
    run, colon, path = word.partition(":")
    if colon and run and not Path(word).exists() and ("/" not in run or RunDir(Path(run)).exists()):
        return There(run, path)
    return Path(word).expanduser()


def _remote(args: argparse.Namespace, name: str, *, moving: bool = False) -> Any:
    run: RunDir = find(name, args.runs)
    ref = run.place_ref()
    if ref is None:
        raise UserError(f"run '{run.name}' lives here, in {run.path}", remedy="Copy with: cp")
    module: Any = importlib.import_module("stoker.launch.remote")  # its HTTP client is heavy
    return module.Remote(run, ref, moving=moving)


def _below(remote: Any, path: str) -> str:
    """A path below the volume's root; one without a slash before it is the run directory's."""
    if path.startswith("/"):
        return path.lstrip("/")
    return f"{contract.VOLUME_RUNS}/{remote.ref.run}/{path}"


def _told(args: argparse.Namespace, done: Progress, where: str) -> int:
    if args.json:
        print(json.dumps({"to": where} | {key: asdict(done)[key] for key in ("done", "there", "files")}))
    else:
        there = f", {output.size(done.there)} of it was there" if done.there else ""
        files = f" in {done.files:,} files" if done.files > 1 else ""
        print(f"{where}: {output.size(done.done)}{files}{there}, checked")
    return contract.EXIT_DONE
