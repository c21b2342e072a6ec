"""`stoker shell`: run a shell or a command in a pod with the run's image and volume."""

import argparse
import shutil
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.backends import backend_of
from stoker.cli.arguments import runs_argument, trust_argument
from stoker.observe.runs import find
from stoker.rundir.commands import command_name
from stoker.spec.errors import UserError

LOGIN = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


def shell_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="run this instead of a shell, and exit with its code"
    )
    runs_argument(parser)
    trust_argument(parser)


def shell(args: argparse.Namespace) -> int:
    run = find(args.run, args.runs)
    files = backend_of(run).files(run)
    if args.command:
        stdin = None if sys.stdin.isatty() else sys.stdin.buffer
        return files.shell(args.command, stdin=stdin, stdout=sys.stdout.buffer, stderr=sys.stderr.buffer, terminal=None)
    if not sys.stdin.isatty():
        raise UserError("a shell needs a terminal", remedy=f"Give a command: stoker shell {command_name(run)} -- ls -l")
    with _raw():
        keys = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115 (stdin stays open)
        return files.shell(LOGIN, stdin=keys, stdout=sys.stdout.buffer, stderr=None, terminal=_size)


def _size() -> tuple[int, int]:
    columns, lines = shutil.get_terminal_size()
    return columns, lines


@contextmanager
def _raw() -> Iterator[None]:
    """Every key goes to the pod, including Ctrl-C."""
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
