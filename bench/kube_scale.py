"""Measures launch, status, ps, logs, events and stop for a run with many pods, on nodes simulated by kwok.

PYTHONPATH=. python bench/kube_scale.py          100 and 1,000 pods
PYTHONPATH=. python bench/kube_scale.py --soak   5,000 too

Needs the lab: make lab
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kube_namespace import fresh_namespace

from lab import cluster, fake
from lab.places import IMAGES, KUBECONFIG, REGISTRY

NAMED = "scale"  # the name of its fake nodes: other tests may have their own
SIZES = (100, 1000)
SOAK = 5000
VERBS = ("launch", "status", "ps", "logs --all", "events", "stop")


def main() -> None:
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    sizes = (*SIZES, SOAK) if "--soak" in sys.argv else SIZES
    print("seconds, of these on the CPU, megabytes at the most; `up` until kwok has all pods running")
    print(" ".join([f"{'pods':>5}", f"{'up':>7}", *(f"{verb:>20}" for verb in VERBS)]))
    for pods in sizes:
        fake.set_count(pods, named=NAMED)
        up, *costs = measured(pods)
        print(" ".join([f"{pods:>5}", f"{up:>7}", *(f"{cost:>20}" for cost in costs)]), flush=True)
    fake.set_count(0, named=NAMED)


def measured(pods: int) -> list[str]:
    with fresh_namespace(cluster.kubectl(), named="scale") as namespace, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text("print('never run: kwok plays the pods')\n")
        return figures(folder, namespace, pods)


def figures(folder: Path, namespace: str, pods: int) -> list[str]:
    words = (
        "script=train.py",
        "on.kind=kubernetes",
        f"on.image=http://{IMAGES['base']}",
        f"on.registry=http://{REGISTRY}/bench/scale",  # has Stoker: the pod that uploads the run to the volume is real
        "on.volume=training",
        f"on.namespace={namespace}",
        f"on.nodes={pods}",
        f"on.selectors={{{fake.MARK}: {NAMED}}}",
        f"on.tolerations=[{fake.MARK}]",
        "on.cpu=32",
    )
    launch, out = timed(folder, "launch", *words, "--json")
    run = json.loads(out)["name"]
    up = await_pods(namespace, run, pods)
    status, out = timed(folder, "status", run, "--json")
    found = len(json.loads(out)["pods"])
    assert found == pods, found
    ps, _ = timed(folder, "ps")
    logs, _ = timed(folder, "logs", run, "--all")
    events, _ = timed(folder, "events", run)
    stop, _ = timed(folder, "stop", run)
    return [f"{up:.1f}", launch, status, ps, logs, events, stop]


def await_pods(namespace: str, run: str, pods: int) -> float:
    began = time.monotonic()
    kubectl = cluster.kubectl()
    while True:
        words = ("--selector=stoker.dev/run=" + run, "--field-selector=status.phase=Running", "--output=name")
        there = kubectl("get", "pods", "-n", namespace, *words).count("\n")
        if there == pods:
            return time.monotonic() - began
        if time.monotonic() - began > 1800:
            raise RuntimeError(f"{there} of {pods} pods are up after half an hour")
        time.sleep(1)


def timed(folder: Path, *words: str) -> tuple[str, str]:
    """The cost of the command, and its output."""
    with open(folder / "out", "w+") as out:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "stoker", *words], cwd=folder, stdout=out)
        _, code, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(code)
        if process.returncode:
            raise RuntimeError(f"stoker {' '.join(words)} ended with {process.returncode}")
        out.seek(0)
        cpu = used.ru_utime + used.ru_stime
        return f"{seconds:.2f} {cpu:.2f} {used.ru_maxrss / 1024:.0f}", out.read()


if __name__ == "__main__":
    main()
