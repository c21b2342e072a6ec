"""`stoker env`: what a worker finds around it."""

import argparse
import importlib
import json
from dataclasses import asdict
from typing import Any

from stoker.cli import output
from stoker.cli.places import runs_argument
from stoker.launch.surroundings import Surroundings, surroundings
from stoker.launch.transfer.frames import Cut
from stoker.observe.runs import find
from stoker.spec import contract
from stoker.spec.errors import UserError

MOST_ASKED = 16  # pods that are asked for a rank, beginning with the likeliest


def env_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="the worker (0)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def env(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    if ref := run.place_ref():
        module: Any = importlib.import_module("stoker.launch.remote")  # its HTTP client is heavy
        found = _in_a_cluster(module.Remote(run, ref), args.rank)
    else:
        found = surroundings(run, args.rank)
    print(json.dumps(asdict(found)) if args.json else _words(found))
    return contract.EXIT_DONE


def _in_a_cluster(remote: Any, rank: int) -> Surroundings:
    pods: list[str] = remote.live(10_000)
    if not pods:
        name, namespace = remote.ref.run, remote.ref.namespace
        raise UserError(
            f"run '{name}' has no running pod in namespace {namespace} of {remote.cluster.who}",
            remedy=f"See whether its pods are still to come: stoker status {name}; or resume it: stoker launch {name}",
        )
    first = min(rank // remote.workers, len(pods) - 1)
    lost = ""
    for pod in (pods[first:] + pods[:first])[:MOST_ASKED]:
        try:
            lines = "".join(remote.ask_pod(pod, "env", "--rank", str(rank), "--json"))
        except Cut as e:
            lost = f" ({e})"
            continue
        found: Surroundings = remote.understood(Surroundings, lines)
        if found.pid is not None:
            return found
    raise UserError(
        f"no worker of run '{remote.ref.run}' has rank {rank} now{lost}", remedy="See its ranks with: stoker status"
    )


def _words(found: Surroundings) -> str:
    nobody = "" if found.pid else "  (no worker of that rank runs here: this is the machine)"
    head = [("rank", f"{found.rank}{nobody}"), ("host", found.host)]
    head += [(name, value) for name, value in (("pod", found.pod), ("node", found.node)) if value]
    if found.pid:
        head += [("process", f"{found.pid}  {' '.join(found.command)}")]
    parts = [output.pairs(head), _part("versions", found.versions), _part("limits", found.limits)]
    devices = {name: "\n                ".join(some) for name, some in found.devices.items()}
    parts += [_part("devices", devices)]
    rows = [
        (
            str(one["path"]),
            str(one["kind"]),
            str(one["mode"]),
            output.size(int(one["bytes"])),
            output.size(int(one["free"])),
        )
        for one in found.mounts
    ]
    parts += ["mounts\n" + _indented(output.table(("path", "kind", "mode", "size", "free"), rows))]
    parts += [_part("environment", found.environment)] if found.environment else []
    return output.printable("\n\n".join(parts))


def _part(title: str, values: dict[str, str]) -> str:
    return title + "\n" + "\n".join(f"  {name:<13} {value}" for name, value in values.items())


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
