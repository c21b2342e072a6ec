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


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab", description="A real Kubernetes cluster on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="build and start it; it stays until `down`")
    up.add_argument("--packages", type=Path, help="the site-packages that containers see (default: this Python's)")
    verbs.add_parser("down", help="take it away without a trace")
    verbs.add_parser("status", help="what runs, and in how much memory")
    verbs.add_parser("env", help="where it is, as lines for a shell")
    kwok = verbs.add_parser("kwok", help="have so many fake nodes")
    kwok.add_argument("nodes", type=int)
    verbs.add_parser("packages", help="install what the tests and the lab need from Debian, where the lab can run")
    verbs.add_parser("gcs", help="build the server that plays Google Cloud Storage for tests")
    verbs.add_parser("build", help="build all of it and start nothing; a machine that cannot run it is told why")
    verbs.add_parser("pin", help="write lab/go/*/go.mod from versions.toml")
    asked = parser.parse_args(words)
    try:
        _do(asked)
        sys.stdout.flush()
    except BrokenPipeError:  # `python -m lab env | head -1` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UserError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"lab: this failed, see above: {' '.join(error.cmd)}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _do(asked: argparse.Namespace) -> None:
    match asked.verb:
        case "up":
            cluster.up(keep=True, lend=asked.packages)
            _env()
        case "down":
            _need_root()
            cluster.down()
        case "status":
            _status()
        case "env":
            _env()
        case "kwok":
            _need()
            fake.have(asked.nodes)
        case "packages":
            _where_it_can_run(packages.install)
        case "gcs":
            golang.gcs()
        case "build":
            _where_it_can_run(cluster.build)
        case "pin":
            pin.pin()


def _where_it_can_run(work: Callable[[], object]) -> None:
    if missing := cluster.lacks():
        print(f"lab: {missing}: its tests will be skipped")
    else:
        work()


def _env() -> None:
    _need()
    print(f"KUBECONFIG={KUBECONFIG}")
    print(f"KUBECTL={cluster.kubectl().program}")
    print(f"REGISTRY={REGISTRY}")
    for name, image in IMAGES.items():
        print(f"IMAGE_{name.upper()}={image}")


def _status() -> None:
    _need()
    hosts = host.alive()
    print(cluster.kubectl()("get", "nodes", "--output=wide"), end="")
    used = sum(_kib(pid) for pid in host.processes(hosts))
    print(f"{len(NODES)} nodes, {used / 2**20:.2f} GiB of memory with all pods; logs in {LOGS}")


def _kib(pid: int) -> int:
    """The memory that a process has to itself, and its part of what it shares."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _need() -> None:
    _need_root()
    if cluster.running() is None:
        raise UserError("the lab is not up", remedy="Run: make lab")


def _need_root() -> None:
    if os.geteuid() != 0:
        raise UserError("the lab is root's", remedy="Run this as root")


if __name__ == "__main__":
    sys.exit(main())
