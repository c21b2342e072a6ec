"""Measures the time from `stoker launch` to the first training step, against `kubectl apply` of the same objects.

    PYTHONPATH=. python bench/kube_launch.py [--rounds 5] [--job job|pytorchjob]

Each starts its own run on nodes that have the image. For `kubectl apply` the run directory is on the volume already.
Needs the lab: make lab
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kube_namespace import fresh_namespace

from lab import cluster
from lab.kubectl import Kubectl
from lab.places import IMAGES, KUBECONFIG, REGISTRY, VOLUMES
from stoker.api.launch import launch, plan
from stoker.api.run import unique_name
from stoker.backends.kubernetes import manifest
from stoker.spec import contract
from stoker.spec.load import load

KINDS = ("job", "pytorchjob")
LIMIT_S = 3.0
TIMEOUT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job", choices=KINDS, action="append")
    args = parser.parse_args()
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    kubectl = cluster.kubectl()
    with fresh_namespace(kubectl, prefix="launch") as namespace, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("text").write_text("".join(f"{number} bottles of beer on the wall\n" for number in range(9999)))
        print(f"seconds to the first step, median of {args.rounds}; at most {LIMIT_S:.0f} s between them")
        for job in args.job or KINDS:
            compare(job, run_overrides(namespace, job), kubectl, rounds=args.rounds)


def run_overrides(namespace: str, job: str) -> list[str]:
    training = "model.layers=1 model.heads=2 model.width=32 model.context=64 data.path=text data.tokenizer.train=300"
    training += " batch.sequences=8 batch.length=32 until.steps=3 log.every=1 eval.every=0 precision=fp32 compile=false"
    on = f"on.kind=kubernetes on.namespace={namespace} on.volume=training on.job={job} on.nodes=2 on.cpu=0.1"
    return [*training.split(), *on.split(), f"on.image=http://{IMAGES['base']}", f"on.registry=http://{REGISTRY}/b"]


def compare(job: str, overrides: list[str], kubectl: Kubectl, *, rounds: int) -> None:
    commands: dict[str, Callable[[], tuple[float, str]]] = {
        "stoker launch": lambda: stoker_launch(overrides),
        "kubectl apply": lambda: kubectl_apply(overrides, kubectl),
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, start in commands.items():
            began, run = start()
            to_first_step = first_step(run) - began
            if number:  # the first round pulls the image to the nodes
                seconds[name].append(to_first_step)
            subprocess.run([sys.executable, "-m", "stoker", "stop", run], check=False, capture_output=True)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        print(f"{job}  {name}  {medians[name]:.2f}  ({' '.join(f'{second:.2f}' for second in times)})")
    print(f"{job}  longer by  {medians['stoker launch'] - medians['kubectl apply']:.2f} s", flush=True)


def stoker_launch(overrides: list[str]) -> tuple[float, str]:
    """Return the start time and the name of the run."""
    began = time.time()
    argv = [sys.executable, "-m", "stoker", "launch", *overrides, "--json"]
    out = subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout
    return began, json.loads(out)["name"]


def kubectl_apply(overrides: list[str], kubectl: Kubectl) -> tuple[float, str]:
    """Prepare everything that would exist before `kubectl apply`, then start the clock."""
    runs = Path("runs").absolute()
    spec = unique_name(load(None, overrides).spec, runs)
    launched = launch(plan(spec, runs=runs), submit=False)
    with tempfile.TemporaryDirectory() as folder:
        manifest.write(launched.submission.objects, Path(folder))
        began = time.time()
        kubectl("apply", "-f", folder)
    return began, launched.run.name


def first_step(run: str) -> float:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for file in VOLUMES.glob(f"*/{contract.VOLUME_RUNS}/{run}/{contract.METRICS_FILE}"):
            if "\n" in (text := file.read_text()):
                return float(json.loads(text.split("\n")[0])["time"])
        time.sleep(0.05)
    raise RuntimeError(f"run {run} did not log a step within {TIMEOUT_S:.0f} seconds")


if __name__ == "__main__":
    main()
