"""`stoker image build|push|run`: the run's own code and Stoker as an image, without a daemon."""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from stoker.cli import output
from stoker.cli.console import SafeConsole
from stoker.cli.places import path
from stoker.cli.train import file_and_words
from stoker.launch.image import base as probed
from stoker.launch.image.archive import write_archive
from stoker.launch.image.build import PLATFORM, Built, ImageRef, build, push
from stoker.launch.image.rootfs import check_runnable, entering, unpack
from stoker.launch.image.tools import build_file, push_built, run_command, runner
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import AnySpec, ScriptSpec

DOING = {
    "base": "looking into the base",
    "packages": "fetching packages",
    "push": "pushing",
    "pull": "fetching the base",
    "unpack": "unpacking",
}
ONE_WORKER = {
    "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip
QUIET = 5.0  # seconds between two lines where there is no terminal


def image_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("build", "push", "run"),
        metavar="build|push|run",
        help="make it and say what it is; make it and push it; make it and run it here",
    )
    parser.add_argument("words", nargs="*", metavar="RUN.yaml key=value", help="the run file, and what overrules it")
    parser.add_argument("--base", metavar="IMAGE", help="the image that it builds on; else on.image")
    parser.add_argument("--to", metavar="REGISTRY/REPO", help="where it is pushed; else on.registry")
    parser.add_argument("--platform", default=PLATFORM, help=f"what its nodes are (default: {PLATFORM})")
    parser.add_argument(
        "--workspace", type=path, metavar="DIR", help="lay this folder over the base's working directory"
    )
    parser.add_argument("--file", type=path, metavar="Dockerfile", help="build this with docker or buildah instead")
    parser.add_argument("-o", "--out", type=path, metavar="FILE", help="build: write it as an OCI archive")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def image(args: argparse.Namespace) -> int:
    if args.file:
        return _of_file(args)
    first, words = file_and_words(args.words, verb=f"image {args.action}")
    spec = load(Path(first) if first else None, words).spec
    base = args.base or spec.on.image
    if not base:
        raise UserError("no base image is named", remedy="Say --base IMAGE, or on.image in the run file")
    with (
        building() as progress,
        build(spec, base=base, platform=args.platform, workspace=args.workspace, progress=progress) as built,
    ):
        return ACTIONS[args.action](args, spec, built, progress)


def _build(args: argparse.Namespace, spec: AnySpec, built: Built, progress: probed.Progress) -> int:
    if args.out:
        write_archive(built, f"{spec.name.lower()}:{built.tag}", args.out, progress=progress)
    _print(args, built, [("written", str(args.out))] if args.out else [], {"file": args.out and str(args.out)})
    return contract.EXIT_DONE


def _push(args: argparse.Namespace, spec: AnySpec, built: Built, progress: probed.Progress) -> int:
    pushed = push(built, _target(args, spec), progress=progress)
    sent = f"{output.size(pushed.sent)} sent" if pushed.sent else "it was there already: nothing was sent"
    _print(args, built, [("pushed", sent), ("image", str(pushed))], {"image": str(pushed), "sent": pushed.sent})
    return contract.EXIT_DONE


def _run(args: argparse.Namespace, spec: AnySpec, built: Built, progress: probed.Progress) -> int:
    command, environment = _inside(spec, built)
    tool = runner()
    if tool and (args.to or spec.on.registry):
        pushed: ImageRef = push(built, _target(args, spec), progress=progress)
        return _show_and_run(run_command(tool, pushed.reference, built.platform, command, environment), None)
    check_runnable(built)
    with tempfile.TemporaryDirectory(prefix="stoker-root-") as root:
        unpack(built, Path(root), progress=progress)
        environment = {"PATH": probed.STANDARD_PATH, **built.environment(), **environment}
        return _show_and_run(*entering(Path(root), built.code.workdir, command, environment))


ACTIONS: dict[str, Callable[[argparse.Namespace, AnySpec, Built, probed.Progress], int]] = {
    "build": _build,
    "push": _push,
    "run": _run,
}


def _inside(spec: AnySpec, built: Built) -> tuple[list[str], dict[str, str]]:
    """A script runs as the one worker of a world; of a model, whose data is not in the image, all parts are checked."""
    if not isinstance(spec, ScriptSpec):
        return ["python3", "-P", "-m", "stoker", "check"], spec.env
    script = built.code.inside(Path(spec.script)) or spec.script
    return ["python3", script, *spec.args], spec.env | ONE_WORKER


def _show_and_run(command: list[str], environment: dict[str, str] | None) -> int:
    print(f"$ {shlex.join(command)}", file=sys.stderr, flush=True)
    return subprocess.run(command, env=environment).returncode


def _of_file(args: argparse.Namespace) -> int:
    if args.action == "run" or args.out or args.workspace:
        raise UserError(
            "--file is for build and push, by docker or buildah", remedy="Leave out run, -o and --workspace"
        )
    to = args.to
    if not to and args.words:
        first, words = file_and_words(args.words, verb=f"image {args.action}")
        to = load(Path(first) if first else None, words).spec.on.registry
    if not to:
        raise UserError(
            "nobody said what it is called", remedy="Say --to REGISTRY/REPO, or on.registry in the run file"
        )
    made = build_file(args.file, to=to, platform=args.platform)
    if args.action == "push":
        made = push_built(made)
    print(json.dumps({"image": str(made)}) if args.json else output.pairs([("image", str(made))]))
    return contract.EXIT_DONE


def _target(args: argparse.Namespace, spec: AnySpec) -> str:
    target: str | None = args.to or spec.on.registry
    if not target:
        raise UserError("nobody said where to push it", remedy="Say --to REGISTRY/REPO, or on.registry in the run file")
    return target


def _print(args: argparse.Namespace, built: Built, rows: list[tuple[str, str]], facts: dict[str, object]) -> None:
    found, code = built.found, built.code
    if args.json:
        about = {
            "base": str(built.base.reference), "platform": built.platform, "python": found.python, "libc": found.libc,
            "torch": found.torch, "packages": built.packages, "folder": code.folder and str(code.folder),
            "workdir": code.workdir, "bytes": sum(layer.size for layer in built.layers), "tag": built.tag,
        }  # fmt: skip
        print(json.dumps(about | {name: value for name, value in facts.items() if value is not None}))
        return
    added = ", ".join(built.packages) or "nothing: the base has all"
    about_code = f"{code.folder} → {code.workdir}, {output.size(code.size)}" if code.folder else "none of your own"
    head = [
        ("base", f"{built.base.reference}, {built.platform}"),
        ("holds", f"Python {found.python}, torch {found.torch}, {found.libc}"),
        ("adds", added),
        ("code", about_code),
        ("layers", f"{output.size(sum(layer.size for layer in built.layers))}, tag {built.tag}"),
    ]
    print(output.pairs([*head, *rows]))


@contextmanager
def building() -> Iterator[probed.Progress]:
    """On stderr: what a verb is asked for goes to stdout alone."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(DOING[what], total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


class _Lines:
    def __init__(self) -> None:
        self._next = time.monotonic() + QUIET

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + QUIET
            of = f"{done} of {total}" if what == "packages" else f"{output.size(done)} of {output.size(total)}"
            print(f"{DOING[what]}: {of}", file=sys.stderr, flush=True)
