"""`python -m stoker.supervise RUN_DIR --workers N [--parent PID] [--echo] [--nodes MIN..MAX …] [-- COMMAND …]`"""

import argparse
import os
import re
import socket
import sys
from functools import partial
from pathlib import Path

from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.contract import EXIT_AGAIN, EXIT_USER
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes
from stoker.storage.sync import mirrored
from stoker.supervise.nodes.election import NodeOptions, run_node
from stoker.supervise.nodes.membership import MAX_PORT, Node, Timeouts
from stoker.supervise.nodes.rendezvous import SingleNodeRendezvous
from stoker.supervise.parent_death import die_with_parent
from stoker.supervise.recorder import recorder
from stoker.supervise.signals import Signals
from stoker.supervise.supervisor import supervise
from stoker.supervise.workers.launcher import WorkerLauncher


def main(timeouts: Timeouts | None = None) -> int:
    """The entry point of this process: errors become one line and an exit code here."""
    arguments, command = _split(sys.argv[1:])
    args = _parser().parse_args(arguments)
    if args.parent is not None:
        die_with_parent(args.parent)
    run = RunDir(args.run)
    command = command or [sys.executable, "-P", "-m", "stoker.train", str(run.path)]
    address = {"address": args.address} if args.address else {}
    launcher = WorkerLauncher(run=run, command=command, workers=args.workers, echo=args.echo, **address)
    try:
        if not run.exists():
            raise UserError(f"{run.path} is not a run directory", remedy="Start a run with: stoker train RUN.yaml")
        with Signals() as signals:
            if args.nodes is not None:
                return run_node(launcher, _node_options(args), signals=signals, timeouts=timeouts or Timeouts())
            with run.lock():
                rendezvous = SingleNodeRendezvous(launcher, record=recorder(run))
                work = partial(supervise, run, rendezvous=rendezvous, signals=signals)
                return mirrored(run, work, hurry=lambda: signals.kill_requested)
    except UserError as e:
        print(f"stoker: {e}", file=sys.stderr)
        return EXIT_USER
    except OSError as e:
        if args.nodes is None:
            raise
        print(f"stoker: {e}", file=sys.stderr)  # the shared directory or the network: a restart elsewhere may work
        return EXIT_AGAIN


def _parser() -> argparse.ArgumentParser:
    env = os.environ
    parser = argparse.ArgumentParser(prog="python -m stoker.supervise")
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--workers", type=int, required=True, help="processes to start on this node")
    parser.add_argument("--parent", type=int, help="die when this process, the parent, dies")
    parser.add_argument("--echo", action="store_true", help="also print the workers' lines, each after [its rank]")
    parser.add_argument("--nodes", metavar="MIN..MAX", help="nodes that share the run directory: 4, or 2..8")
    parser.add_argument(
        "--node", default=env.get(contract.ENV_NODE), help=f"the index of this node ({contract.ENV_NODE})"
    )
    parser.add_argument(
        "--address",
        default=env.get(contract.ENV_ADDRESS),
        help=f"where the other nodes reach this one ({contract.ENV_ADDRESS})",
    )
    parser.add_argument(
        "--port",
        default=env.get(contract.ENV_PORT, str(contract.NODES_PORT)),
        help=f"where this node listens while it leads; 0: any free port ({contract.ENV_PORT})",
    )
    return parser


def _node_options(args: argparse.Namespace) -> NodeOptions:
    try:
        nodes = Nodes(args.nodes)
    except ValueError as e:
        raise UserError(f"--nodes is {args.nodes}", remedy="Give a number such as 4, or a range such as 2..8") from e
    for name, value in (("--node", args.node), ("--port", args.port)):
        if not re.fullmatch(r"\d{1,6}", value or "", re.ASCII):
            raise UserError(f"{name} is {value or 'missing'}", remedy=f"Give a number with {name}")
    if int(args.port) > MAX_PORT:
        raise UserError(f"--port is {args.port}", remedy=f"Give a number up to {MAX_PORT} with --port")
    if not args.address and nodes.most > 1:
        raise UserError("--address is missing", remedy="Give the address of this node: --address IP")
    if not _is_host(args.address or ""):
        raise UserError(
            f"--address is {args.address}, which is not a host name",
            remedy="Give the address of this node: --address IP",
        )
    me = Node(
        index=int(args.node),
        address=args.address or "",
        workers=args.workers,
        host=socket.gethostname(),
        pod=os.environ.get(contract.ENV_POD, ""),
        machine=os.environ.get(contract.ENV_K8S_NODE, ""),
    )
    return NodeOptions(me=me, port=int(args.port), nodes=nodes)


def _is_host(address: str) -> bool:
    """Whether the socket library accepts it as a name, which may still not exist."""
    try:
        address.encode("idna")
    except UnicodeError:
        return False
    return True


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Before and after `--`: argparse cannot tell an empty command from a missing one when options follow the run."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
