"""Measures the time from `stoker launch` to the first training step, against `kubectl apply` of the same objects.

PYTHONPATH=. python bench/kube_launch.py

Each starts its own run on nodes that have the image. For `kubectl apply` the run directory is on the volume already.
Needs the lab: make lab
"""

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

ROUNDS = 5
KINDS = ("job", "pytorchjob")
BAR_S = 3.0
PATIENCE_S = 120.0


def main() -> None:
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    kubectl = cluster.kubectl()
    with fresh_namespace(kubectl, named="launch") as namespace, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("text").write_text("".join(f"{number} bottles of beer on the wall\n" for number in range(9999)))
        print(f"seconds to the first step, median of {ROUNDS}; at most {BAR_S:.0f} s between them")
        for job in KINDS:
            compare(words(namespace, job), kubectl)


def words(namespace: str, job: str) -> list[str]:
    training = "model.layers=1 model.heads=2 model.width=32 model.context=64 data.path=text data.tokenizer.train=300"
    training += " batch.sequences=8 batch.length=32 until.steps=3 log.every=1 eval.every=0 precision=fp32 compile=false"
    places = f"on.kind=kubernetes on.namespace={namespace} on.volume=training on.job={job} on.nodes=2 on.cpu=0.1"
    return [*training.split(), *places.split(), f"on.image=http://{IMAGES['base']}", f"on.registry=http://{REGISTRY}/b"]


def compare(given: list[str], kubectl: Kubectl) -> None:
    ways: dict[str, Callable[[], tuple[float, str]]] = {
        "stoker launch": lambda: launched(given),
        "kubectl apply": lambda: applied(given, kubectl),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, way in ways.items():
            began, run = way()
            took = first_step(run) - began
            if turn:  # the first turn pulls the image to the nodes
                found[name].append(took)
            subprocess.run([sys.executable, "-m", "stoker", "stop", run], check=False, capture_output=True)
    middle = {name: statistics.median(seconds) for name, seconds in found.items()}
    job = next(word for word in given if word.startswith("on.job="))
    for name, seconds in found.items():
        print(f"{job}  {name}  {middle[name]:.2f}  ({' '.join(f'{one:.2f}' for one in seconds)})")
    print(f"{job}  longer by  {middle['stoker launch'] - middle['kubectl apply']:.2f} s", flush=True)


def launched(given: list[str]) -> tuple[float, str]:
    began = time.time()
    out = subprocess.run(
        [sys.executable, "-m", "stoker", "launch", *given, "--json"], check=True, stdout=subprocess.PIPE
    ).stdout
    return began, json.loads(out)["name"]


def applied(given: list[str], kubectl: Kubectl) -> tuple[float, str]:
    """Prepare everything that would exist before `kubectl apply`, then start the clock."""
    runs = Path("runs").absolute()
    spec = unique_name(load(None, given).spec, runs)
    launched = launch(plan(spec, runs=runs), submit=False)
    with tempfile.TemporaryDirectory() as folder:
        manifest.write(launched.submission.objects, Path(folder))
        began = time.time()
        kubectl("apply", "-f", folder)
    return began, launched.run.name


def first_step(run: str) -> float:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        for file in VOLUMES.glob(f"*/{contract.VOLUME_RUNS}/{run}/{contract.METRICS_FILE}"):
            if "\n" in (text := file.read_text()):
                return float(json.loads(text.split("\n")[0])["time"])
        time.sleep(0.05)
    raise RuntimeError(f"run {run} has made no step within {PATIENCE_S:.0f} seconds")


if __name__ == "__main__":
    main()
