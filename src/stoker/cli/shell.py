"""`stoker shell`: a pod with the run's image and volume, for as long as one looks around in it."""

import argparse
import importlib
import os
import shutil
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stoker.cli.places import runs_argument, trust_argument
from stoker.observe.runs import find
from stoker.spec.errors import UserError

IN_RUN = 'cd "$0" 2>/dev/null || cd "$(dirname "$(dirname "$0")")"; exec "$@"'  # no run directory yet: its volume
LOGIN = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


def shell_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="run this and no shell; its exit code is ours")
    runs_argument(parser)
    trust_argument(parser)


def shell(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    ref = run.place_ref()
    if ref is None:
        raise UserError(f"run '{run.name}' lives here", remedy=f"Look around with: cd {run.path}")
    if not args.command and not sys.stdin.isatty():
        raise UserError("a shell needs a terminal", remedy=f"Give a command: stoker shell {args.run} -- ls -l")
    module: Any = importlib.import_module("stoker.launch.remote")  # its HTTP client is heavy
    remote = module.Remote(run, ref)
    argv = ["sh", "-c", IN_RUN, remote.folder, *(args.command or LOGIN)]
    with remote.shell() as pod:
        return _interactive(remote, pod, argv) if not args.command else _command(remote, pod, argv)


def _command(remote: Any, pod: str, argv: list[str]) -> int:
    stdin = None if sys.stdin.isatty() else sys.stdin.buffer
    code: int = remote.cluster.exec(
        pod, argv, container=remote.container, stdin=stdin, stdout=sys.stdout.buffer, stderr=sys.stderr.buffer
    )
    return code


def _interactive(remote: Any, pod: str, argv: list[str]) -> int:
    with _raw():
        code: int = remote.cluster.exec(
            pod,
            ["env", f"TERM={os.environ.get('TERM', 'xterm')}", *argv],
            container=remote.container,
            stdin=open(sys.stdin.fileno(), "rb", buffering=0, closefd=False),  # noqa: SIM115 (stdin stays open)
            stdout=sys.stdout.buffer,
            tty=lambda: tuple(shutil.get_terminal_size()),
        )
    return code


@contextmanager
def _raw() -> Iterator[None]:
    """Every key goes to the pod, Ctrl-C too."""
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
