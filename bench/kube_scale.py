"""Measures launch, status, ps, logs, events and stop for a run with many pods, on nodes simulated by kwok.

    PYTHONPATH=. python bench/kube_scale.py                 # 100 and 1,000 pods
    PYTHONPATH=. python bench/kube_scale.py --pods 5000     # another number

Needs the lab: make lab
"""

import argparse
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

NODE_SET = "scale"  # the name of its fake nodes: tests may have their own
PODS = [100, 1000]
UP_TIMEOUT_S = 1800
VERBS = ("launch", "status", "ps", "logs --all", "events", "stop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, action="append")
    args = parser.parse_args()
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    print("seconds, CPU seconds, peak MB; `up`: seconds until kwok has all pods running")
    print(" ".join([f"{'pods':>5}", f"{'up':>7}", *(f"{verb:>20}" for verb in VERBS)]))
    try:
        for pods in args.pods or PODS:
            fake.set_count(pods, named=NODE_SET)
            up, *costs = measure(pods)
            print(" ".join([f"{pods:>5}", f"{up:>7}", *(f"{cost:>20}" for cost in costs)]), flush=True)
    finally:
        fake.set_count(0, named=NODE_SET)


def measure(pods: int) -> list[str]:
    with fresh_namespace(cluster.kubectl(), prefix="scale") as namespace, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text("print('never run: kwok simulates the pods')\n")
        return measure_verbs(folder, namespace, pods)


def measure_verbs(folder: Path, namespace: str, pods: int) -> list[str]:
    overrides = (
        "script=train.py",
        "on.kind=kubernetes",
        f"on.image=http://{IMAGES['base']}",
        f"on.registry=http://{REGISTRY}/bench/scale",  # has Stoker: the pod that uploads the run to the volume is real
        "on.volume=training",
        f"on.namespace={namespace}",
        f"on.nodes={pods}",
        f"on.selectors={{{fake.MARK}: {NODE_SET}}}",
        f"on.tolerations=[{fake.MARK}]",
        "on.cpu=32",
    )
    launch, out = timed(folder, "launch", *overrides, "--json")
    run = json.loads(out)["name"]
    up = await_pods(namespace, run, pods)
    status, out = timed(folder, "status", run, "--json")
    shown = len(json.loads(out)["pods"])
    assert shown == pods, shown
    ps, _ = timed(folder, "ps")
    logs, _ = timed(folder, "logs", run, "--all")
    events, _ = timed(folder, "events", run)
    stop, _ = timed(folder, "stop", run)
    return [f"{up:.1f}", launch, status, ps, logs, events, stop]


def await_pods(namespace: str, run: str, pods: int) -> float:
    began = time.monotonic()
    kubectl = cluster.kubectl()
    while True:
        selectors = ("--selector=stoker.dev/run=" + run, "--field-selector=status.phase=Running", "--output=name")
        up = kubectl("get", "pods", "-n", namespace, *selectors).count("\n")
        if up == pods:
            return time.monotonic() - began
        if time.monotonic() - began > UP_TIMEOUT_S:
            raise RuntimeError(f"{up} of {pods} pods are up after {UP_TIMEOUT_S} s")
        time.sleep(1)


def timed(folder: Path, *args: str) -> tuple[str, str]:
    """The cost of the command, and its output."""
    with open(folder / "out", "w+") as out:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "stoker", *args], cwd=folder, stdout=out)
        _, code, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(code)
        if process.returncode:
            raise RuntimeError(f"stoker {' '.join(args)} ended with {process.returncode}")
        out.seek(0)
        cpu = used.ru_utime + used.ru_stime
        return f"{seconds:.2f} {cpu:.2f} {used.ru_maxrss / 1024:.0f}", out.read()


if __name__ == "__main__":
    main()
