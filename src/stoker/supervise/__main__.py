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
from stoker.supervise.lifeline import die_with
from stoker.supervise.members import Node, Patience
from stoker.supervise.muster import Alone
from stoker.supervise.node import Place, take_part
from stoker.supervise.signals import Signals
from stoker.supervise.supervisor import noted, supervise
from stoker.supervise.workers import Job


def main(patience: Patience | None = None) -> int:
    ours, command = _split(sys.argv[1:])
    args = _parser().parse_args(ours)
    if args.parent is not None:
        die_with(args.parent)
    run = RunDir(args.run)
    command = command or [sys.executable, "-P", "-m", "stoker.train", str(run.path)]
    address = {"address": args.address} if args.address else {}
    job = Job(run=run, command=command, workers=args.workers, echo=args.echo, **address)
    try:
        if not run.exists():
            raise UserError(f"{run.path} is not a run directory", remedy="Start a run with: stoker train RUN.yaml")
        with Signals() as signals:
            if args.nodes is not None:
                return take_part(job, _place(args), signals=signals, patience=patience or Patience())
            with run.lock():
                work = partial(supervise, run, muster=Alone(job, note=noted(run)), signals=signals)
                return mirrored(run, work, hurry=lambda: signals.impatient)
    except UserError as e:
        print(f"stoker: {e}", file=sys.stderr)
        return EXIT_USER
    except OSError as e:
        if args.nodes is None:
            raise
        print(f"stoker: {e}", file=sys.stderr)  # the shared directory or the network: elsewhere or later it may work
        return EXIT_AGAIN


def _parser() -> argparse.ArgumentParser:
    env = os.environ
    parser = argparse.ArgumentParser(prog="python -m stoker.supervise")
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--workers", type=int, required=True, help="processes to start on this node")
    parser.add_argument("--parent", type=int, help="die when this process, the parent, dies")
    parser.add_argument("--echo", action="store_true", help="print the workers' lines too, each after [its rank]")
    parser.add_argument("--nodes", metavar="MIN..MAX", help="nodes that share the run directory: 4, or 2..8")
    parser.add_argument("--node", default=env.get(contract.ENV_NODE), help=f"index of this one ({contract.ENV_NODE})")
    parser.add_argument(
        "--address",
        default=env.get(contract.ENV_ADDRESS),
        help=f"where the other nodes reach this one ({contract.ENV_ADDRESS})",
    )
    parser.add_argument(
        "--port",
        default=env.get(contract.ENV_PORT, str(contract.NODES_PORT)),
        help=f"where a node listens while it leads; 0: any ({contract.ENV_PORT})",
    )
    return parser


def _place(args: argparse.Namespace) -> Place:
    try:
        nodes = Nodes(args.nodes)
    except ValueError as e:
        raise UserError(f"--nodes is {args.nodes}", remedy="Give a number such as 4, or a range such as 2..8") from e
    for name, value in (("--node", args.node), ("--port", args.port)):
        if not re.fullmatch(r"\d{1,6}", value or ""):
            raise UserError(f"{name} is {value or 'not given'}", remedy=f"Give a number with {name}")
    if not args.address and nodes.most > 1:
        raise UserError("--address is not given", remedy="Say where the other nodes reach this one: --address IP")
    me = Node(
        node=int(args.node),
        address=args.address or "",
        workers=args.workers,
        host=socket.gethostname(),
        pod=os.environ.get(contract.ENV_POD, ""),
        machine=os.environ.get(contract.ENV_K8S_NODE, ""),
    )
    return Place(me=me, port=int(args.port), nodes=nodes)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Before and after `--`: argparse takes an empty list of words for given when options follow the run."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
