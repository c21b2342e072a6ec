"""`stoker env`: the environment, versions, limits, devices and mounts of a worker."""

import argparse
import json
from dataclasses import asdict

from stoker.backends import backend_of
from stoker.backends.local.environment import WorkerEnvironment
from stoker.cli import output
from stoker.cli.arguments import runs_argument
from stoker.observe.runs import find
from stoker.spec import contract


def env_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="the worker (0)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def env(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    environment = backend_of(run).environment(run, args.rank)
    print(json.dumps(asdict(environment)) if args.json else _text(environment))
    return contract.EXIT_DONE


def _text(worker: WorkerEnvironment) -> str:
    no_worker = "" if worker.pid else "  (no worker of that rank runs here: this is the machine itself)"
    head = [("rank", f"{worker.rank}{no_worker}"), ("host", worker.host)]
    head += [(name, value) for name, value in (("pod", worker.pod), ("node", worker.node)) if value]
    if worker.pid:
        head += [("process", f"{worker.pid}  {' '.join(worker.command)}")]
    parts = [output.pairs(head), _part("versions", worker.versions), _part("limits", worker.limits)]
    devices = {name: "\n                ".join(lines) for name, lines in worker.devices.items()}
    parts += [_part("devices", devices)]
    rows = [
        (
            str(mount["path"]),
            str(mount["kind"]),
            str(mount["mode"]),
            output.size(int(mount["bytes"])),
            output.size(int(mount["free"])),
        )
        for mount in worker.mounts
    ]
    parts += ["mounts\n" + _indented(output.table(("path", "kind", "mode", "size", "free"), rows))]
    parts += [_part("environment", worker.environment)] if worker.environment else []
    return output.printable("\n\n".join(parts))


def _part(title: str, values: dict[str, str]) -> str:
    return title + "\n" + "\n".join(f"  {name:<13} {value}" for name, value in values.items())


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
