"""Every benchmark in its short form, one table each.

    python -m bench              # all of them
    python -m bench train ps     # some

The short form shows that a benchmark works, and roughly what it gives. The figures of RESULTS.md come from the full
form on a quiet machine: python bench/NAME.py
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab import host
from lab.places import READY
from stoker.backends.local.machine import gpus

FOLDER = Path(__file__).parent
HELPERS = ("contest", "hf_bert", "hf_trainer", "kube_namespace", "medians", "processes")
"""Modules that benchmarks use."""


def lab_missing() -> str | None:
    return None if READY.exists() and host.alive() else "needs the lab: make lab"


def gpu_missing() -> str | None:
    return None if gpus() else "needs an NVIDIA GPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    file: str
    """In bench/, without .py."""
    short: str = ""
    """Its arguments in the short form."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run here, in one line."""


BENCHES = {
    "help": Bench(file="help"),
    "ps": Bench(file="ps"),
    "seek": Bench(file="seek"),
    "prepare": Bench(file="prepare", short="--quick --pairs 1"),
    "generate": Bench(file="generate", short="--pairs 1"),
    "checkpoint": Bench(file="checkpoint", short="--pairs 1 --layers 1"),
    "train": Bench(file="train", short="--pairs 1 --turn 5 --only bf16"),
    "llama": Bench(file="train", short="--case llama --pairs 1 --turn 5 --only bf16"),
    "train-gpu": Bench(file="train", short="--case gpu --pairs 1 --turn 5 --only bf16", missing=gpu_missing),
    "bert": Bench(file="bert", short="--pairs 1 --turn 5 --only full"),
    "distill": Bench(file="distill", short="--seeds 1 --steps 30 --teacher-steps 60"),
    "kube_launch": Bench(file="kube_launch", short="--rounds 1 --job job", missing=lab_missing),
    "kube_scale": Bench(file="kube_scale", short="--pods 100", missing=lab_missing),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks in their short form.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)} (all)")
    names = parser.parse_args().names or [*BENCHES]
    if unknown := [name for name in names if name not in BENCHES]:
        parser.error(f"unknown benchmark {unknown[0]}: choose from {', '.join(BENCHES)}")
    failed = [name for name in names if not run(name)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(name: str) -> bool:
    bench = BENCHES[name]
    if reason := bench.missing():
        print(f"== {name}: skipped: it {reason}", flush=True)
        return True
    print(f"== {name}: python bench/{bench.file}.py {bench.short}".rstrip(), flush=True)
    began = time.monotonic()
    argv = [sys.executable, str(FOLDER / f"{bench.file}.py"), *bench.short.split()]
    path = os.pathsep.join(filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(argv, env=os.environ | {"PYTHONPATH": path})
    print(f"== {name}: {time.monotonic() - began:.0f} s\n", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
