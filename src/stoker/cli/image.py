"""`stoker image build|push|run`: an image of the run's code and Stoker, built without a daemon."""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from stoker.cli import output
from stoker.cli.arguments import file_and_overrides, path
from stoker.cli.progress.image import show_image_progress
from stoker.image import base as probed
from stoker.image.archive import write_archive
from stoker.image.build import PLATFORM, Built, ImageRef, build, push
from stoker.image.container_tool import build_file, push_built, run_command, runner
from stoker.image.rootfs import check_runnable, entering, unpack
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.on import KubernetesOn
from stoker.spec.run import AnySpec, ScriptSpec

ONE_WORKER = {
    "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip


def image_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("build", "push", "run"),
        metavar="build|push|run",
        help="build it and print what it contains; build and push it; build it and run it here",
    )
    parser.add_argument("arguments", nargs="*", metavar="RUN.yaml key=value", help="the run file, and overrides")
    parser.add_argument("--base", metavar="IMAGE", help="the base image (on.image)")
    parser.add_argument("--to", metavar="REGISTRY/REPO", help="where to push it (on.registry)")
    parser.add_argument("--platform", default=PLATFORM, help=f"platform of the nodes (default: {PLATFORM})")
    parser.add_argument(
        "--workspace", type=path, metavar="DIR", help="copy this folder into the base's working directory"
    )
    parser.add_argument("--file", type=path, metavar="Dockerfile", help="build this with docker or buildah instead")
    parser.add_argument("-o", "--out", type=path, metavar="FILE", help="with build: write it as an OCI archive")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def image(args: argparse.Namespace) -> int:
    if args.file:
        return _of_dockerfile(args)
    if args.out and args.action != "build":
        raise UserError("-o is for build, which writes the image to a file", remedy="Run: stoker image build -o FILE …")
    file, overrides = file_and_overrides(args.arguments, verb=f"image {args.action}")
    spec = load(Path(file) if file else None, overrides).spec
    base = args.base or _cluster(spec).image
    if not base:
        raise UserError("no base image is named", remedy="Use --base IMAGE, or set on.image in the run file")
    with (
        show_image_progress() as progress,
        build(spec, base=base, platform=args.platform, workspace=args.workspace, progress=progress) as built,
    ):
        return ACTIONS[args.action](args, spec, built, progress)


def _build(args: argparse.Namespace, spec: AnySpec, built: Built, progress: probed.BuildProgress) -> int:
    if args.out:
        write_archive(built, f"{spec.name.lower()}:{built.tag}", args.out, progress=progress)
    _print(args, built, [("written", str(args.out))] if args.out else [], {"file": args.out and str(args.out)})
    return contract.EXIT_DONE


def _push(args: argparse.Namespace, spec: AnySpec, built: Built, progress: probed.BuildProgress) -> int:
    pushed = push(built, _target(args, spec), progress=progress)
    sent = f"{output.size(pushed.sent)} sent" if pushed.sent else "the registry has it already: nothing was sent"
    _print(args, built, [("pushed", sent), ("image", str(pushed))], {"image": str(pushed), "sent": pushed.sent})
    return contract.EXIT_DONE


def _run(args: argparse.Namespace, spec: AnySpec, built: Built, progress: probed.BuildProgress) -> int:
    command, environment = _inside(spec, built)
    tool = runner()
    if tool and (args.to or _cluster(spec).registry):
        pushed: ImageRef = push(built, _target(args, spec), progress=progress)
        return _show_and_run(run_command(tool, pushed.reference, built.platform, command, environment), None)
    check_runnable(built)
    with tempfile.TemporaryDirectory(prefix="stoker-root-") as root:
        unpack(built, Path(root), progress=progress)
        environment = {"PATH": probed.STANDARD_PATH, **built.environment(), **environment}
        return _show_and_run(*entering(Path(root), built.code.workdir, command, environment))


ACTIONS: dict[str, Callable[[argparse.Namespace, AnySpec, Built, probed.BuildProgress], int]] = {
    "build": _build,
    "push": _push,
    "run": _run,
}


def _inside(spec: AnySpec, built: Built) -> tuple[list[str], dict[str, str]]:
    """A script runs as the only worker. For a model, whose data is not in the image, `stoker check` runs instead."""
    if not isinstance(spec, ScriptSpec):
        return ["python3", "-P", "-m", "stoker", "check"], spec.env
    script = built.code.inside(Path(spec.script)) or spec.script
    return ["python3", script, *spec.args], spec.env | ONE_WORKER


def _show_and_run(command: list[str], environment: dict[str, str] | None) -> int:
    print(f"$ {shlex.join(command)}", file=sys.stderr, flush=True)
    return subprocess.run(command, env=environment).returncode


def _of_dockerfile(args: argparse.Namespace) -> int:
    if args.action == "run" or args.out or args.workspace:
        raise UserError(
            "--file is for build and push, with docker or buildah", remedy="Leave out run, -o and --workspace"
        )
    to = args.to
    if not to and args.arguments:
        file, overrides = file_and_overrides(args.arguments, verb=f"image {args.action}")
        to = _cluster(load(Path(file) if file else None, overrides).spec).registry
    if not to:
        raise UserError("the image has no name", remedy="Use --to REGISTRY/REPO, or set on.registry in the run file")
    image = build_file(args.file, to=to, platform=args.platform)
    if args.action == "push":
        image = push_built(image)
    print(json.dumps({"image": str(image)}) if args.json else output.pairs([("image", str(image))]))
    return contract.EXIT_DONE


def _cluster(spec: AnySpec) -> KubernetesOn:
    """The settings of a run file for a cluster; the defaults for any other."""
    return spec.on if isinstance(spec.on, KubernetesOn) else KubernetesOn()


def _target(args: argparse.Namespace, spec: AnySpec) -> str:
    target: str | None = args.to or _cluster(spec).registry
    if not target:
        raise UserError(
            "there is no registry to push to", remedy="Use --to REGISTRY/REPO, or set on.registry in the run file"
        )
    return target


def _print(args: argparse.Namespace, built: Built, rows: list[tuple[str, str]], facts: dict[str, object]) -> None:
    base, code = built.contents, built.code
    if args.json:
        about = {
            "base": str(built.base.reference), "platform": built.platform, "python": base.python, "libc": base.libc,
            "torch": base.torch, "packages": built.packages, "folder": code.folder and str(code.folder),
            "workdir": code.workdir, "bytes": sum(layer.size for layer in built.layers), "tag": built.tag,
        }  # fmt: skip
        print(json.dumps(about | {name: value for name, value in facts.items() if value is not None}))
        return
    added = ", ".join(built.packages) or "nothing: the base has all packages"
    about_code = f"{code.folder} → {code.workdir}, {output.size(code.size)}" if code.folder else "none of your own"
    head = [
        ("base", f"{built.base.reference}, {built.platform}"),
        ("holds", f"Python {base.python}, torch {base.torch}, {base.libc}"),
        ("adds", added),
        ("code", about_code),
        ("layers", f"{output.size(sum(layer.size for layer in built.layers))}, tag {built.tag}"),
    ]
    print(output.pairs([*head, *rows]))
