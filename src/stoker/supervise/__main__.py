"""`python -m stoker.supervise RUN_DIR --workers N [--parent PID] [-- COMMAND …]`"""

import argparse
import sys
from functools import partial
from pathlib import Path

from stoker.rundir import RunDir
from stoker.spec.contract import EXIT_USER
from stoker.spec.errors import UserError
from stoker.storage.sync import mirrored
from stoker.supervise.lifeline import die_with
from stoker.supervise.signals import Signals
from stoker.supervise.supervisor import supervise


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stoker.supervise")
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--workers", type=int, required=True, help="processes to start")
    parser.add_argument("--parent", type=int, help="die when this process, the parent, dies")
    ours, command = _split(sys.argv[1:])
    args = parser.parse_args(ours)
    if args.parent is not None:
        die_with(args.parent)
    run = RunDir(args.run)
    command = command or [sys.executable, "-P", "-m", "stoker.train", str(run.path)]
    try:
        if not run.exists():
            raise UserError(f"{run.path} is not a run directory", remedy="Start a run with: stoker train RUN.yaml")
        with Signals() as signals, run.lock():
            work = partial(supervise, run, command=command, world=args.workers, signals=signals)
            return mirrored(run, work, hurry=lambda: signals.impatient)
    except UserError as e:
        print(f"stoker: {e}", file=sys.stderr)
        return EXIT_USER


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Before and after `--`: argparse takes an empty list of words for given when options follow the run."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
