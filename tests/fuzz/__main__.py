"""python -m tests.fuzz [KIND …] --count 64 --seed 1 [--only N] [--keep DIR]: hostile input, and its outcome."""

import argparse
import gc
import importlib
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from stoker.cli.main import VERBS
from tests.fuzz import base, cases, runner

VERDICTS = ["clean", "traceback", "hang", "executed"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(cases.KINDS))
    parser.add_argument("--count", type=int, default=64, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the case of this number")
    parser.add_argument("--keep", type=Path, help="move the folders of cases that are not clean here")
    parser.add_argument("--base", type=Path, help="folder of the valid input; it is created if it is missing")
    args = parser.parse_args()
    kinds = args.kinds or list(cases.KINDS)
    _load_everything()
    runner.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="stoker-fuzz-", dir=args.keep) as folder:
        outcomes = _run_all(kinds, args, Path(folder))
    report(kinds, outcomes, args.seed)
    return int(any(outcome.verdict != "clean" for outcome in outcomes))


def report(kinds: list[str], outcomes: list[runner.Outcome], seed: int) -> None:
    print(f"seed {seed}")
    print(_row("", "tried", *VERDICTS, "other", "slowest", "CPU", "MiB"))
    for outcome in sorted(outcomes, key=lambda o: -o.cpu)[:3]:
        print(
            f"{outcome.case.kind} {outcome.case.number} took {outcome.cpu:.1f} s of CPU: {outcome.case.description!a}"
        )
    for kind in [*kinds, "all"]:
        selected = [o for o in outcomes if kind in (o.case.kind, "all")]
        counted = Counter(o.verdict if o.verdict in VERDICTS else "other" for o in selected)
        slowest, peak = max((o.seconds for o in selected), default=0), max((o.mebibytes for o in selected), default=0)
        verdicts = [counted[verdict] for verdict in [*VERDICTS, "other"]]
        print(_row(kind, len(selected), *verdicts, f"{slowest:.1f} s", f"{sum(o.cpu for o in selected):.0f} s", peak))


def _row(name: str, *cells: object) -> str:
    return f"{name:<14}" + "".join(f"{cell:>10}" for cell in cells)


def _run_all(kinds: list[str], args: argparse.Namespace, folder: Path) -> list[runner.Outcome]:
    valid = base.make(args.base or folder / "base")
    outcomes = []
    for kind in kinds:
        for number in range(args.count) if args.only is None else [args.only]:
            case_folder = folder / f"{kind}-{number}"
            outcome = runner.run(cases.build(kind, number, args.seed, valid, case_folder))
            outcomes.append(outcome)
            if outcome.verdict == "clean":
                runner.clear(case_folder)
                if args.only is not None:
                    print(outcome.case.description, outcome.code, outcome.output, sep="\n")
                continue
            print(f"{kind} {number}: {outcome.verdict} (exit {outcome.code}): {outcome.case.description!a}")
            print("\n".join(f"    {line!a}" for line in outcome.output.splitlines()[-6:]), flush=True)
            if args.keep is None:
                runner.clear(case_folder)
            else:
                case_folder.rename(args.keep / case_folder.name)
    return outcomes


def _load_everything() -> None:
    """Load all modules before the forks."""
    torch.set_num_threads(1)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    for module, _ in VERBS.values():
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy every page


if __name__ == "__main__":
    sys.exit(main())
