"""python -m lab up | down | status | env | kwok N | packages | gcs | build | pin"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lab import cluster, fake, golang, host, packages, pin
from lab.places import IMAGES, KUBECONFIG, LOGS, NODES, REGISTRY
from stoker.spec.errors import UserError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab", description="A real Kubernetes cluster on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="build and start the lab; it stays until `down`")
    up.add_argument("--packages", type=Path, help="the site-packages that containers see (default: this Python's)")
    verbs.add_parser("down", help="stop the lab and delete its files")
    verbs.add_parser("status", help="show the nodes and the memory in use")
    verbs.add_parser("env", help="print KUBECONFIG, kubectl, registry and images as shell variables")
    kwok = verbs.add_parser("kwok", help="set the number of fake nodes")
    kwok.add_argument("nodes", type=int)
    verbs.add_parser("packages", help="install the Debian packages of the tests and the lab, if the lab can run here")
    verbs.add_parser("gcs", help="build the fake Google Cloud Storage server of the tests")
    verbs.add_parser("build", help="build everything and start nothing; print why if the lab cannot run here")
    verbs.add_parser("pin", help="write lab/go/*/go.mod from versions.toml")
    args = parser.parse_args(argv)
    try:
        _run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # `python -m lab env | head -1` closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UserError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"lab: command failed, see above: {' '.join(error.cmd)}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _run(args: argparse.Namespace) -> None:
    match args.verb:
        case "up":
            cluster.up(keep=True, packages_folder=args.packages)
            _env()
        case "down":
            _require_root()
            cluster.down()
        case "status":
            _status()
        case "env":
            _env()
        case "kwok":
            _require_lab()
            fake.set_count(args.nodes)
        case "packages":
            _if_supported(packages.install)
        case "gcs":
            golang.gcs()
        case "build":
            _if_supported(cluster.build)
        case "pin":
            pin.pin()


def _if_supported(work: Callable[[], object]) -> None:
    if reason := cluster.unsupported():
        print(f"lab: {reason}: its tests will be skipped")
    else:
        work()


def _env() -> None:
    _require_lab()
    print(f"KUBECONFIG={KUBECONFIG}")
    print(f"KUBECTL={cluster.kubectl().program}")
    print(f"REGISTRY={REGISTRY}")
    for name, image in IMAGES.items():
        print(f"IMAGE_{name.upper()}={image}")


def _status() -> None:
    _require_lab()
    hosts = host.alive()
    print(cluster.kubectl()("get", "nodes", "--output=wide"), end="")
    used = sum(_kib(pid) for pid in host.processes(hosts))
    print(f"{len(NODES)} nodes, {used / 2**20:.2f} GiB of memory with all pods; logs in {LOGS}")


def _kib(pid: int) -> int:
    """The proportional set size of a process: its private memory and its share of shared memory."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _require_lab() -> None:
    _require_root()
    if cluster.running() is None:
        raise UserError("the lab is not running", remedy="Run: make lab")


def _require_root() -> None:
    if os.geteuid() != 0:
        raise UserError("the lab needs root", remedy="Run this as root")


if __name__ == "__main__":
    sys.exit(main())
