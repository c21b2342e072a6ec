"""What launch, ps, status, events and stop cost for a run of many pods, on nodes that kwok plays.

python bench/kube_scale.py          100 and 1,000 pods
python bench/kube_scale.py --soak   5,000 too

Needs the lab (`make lab`), or KUBECONFIG with fake nodes that have kwok's label and taint.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from lab import cluster, fake
from lab.places import KUBECONFIG

SIZES = (100, 1000)
SOAK = 5000
HEAD = ("pods", "launch s", "all up s", "status s", "status MB", "ps s", "ps MB", "events s", "events MB", "stop s")


def main() -> None:
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    sizes = (*SIZES, SOAK) if "--soak" in sys.argv else SIZES
    print("  ".join(f"{word:>9}" for word in HEAD))
    for pods in sizes:
        fake.have(pods)
        print("  ".join(f"{number:>9}" for number in measured(pods)), flush=True)
    fake.have(0)


def measured(pods: int) -> list[str]:
    kubectl = cluster.kubectl()
    namespace = f"scale-{uuid.uuid4().hex[:6]}"
    kubectl("create", "namespace", namespace)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "training", "namespace": namespace}
    kubectl.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text("print('never run: kwok plays the pods')\n")
        try:
            return [str(pods), *figures(folder, namespace, pods)]
        finally:
            kubectl("delete", "namespace", namespace, "--wait=false")


def figures(folder: Path, namespace: str, pods: int) -> list[str]:
    words = (
        "script=train.py",
        "on.kind=kubernetes",
        "on.image=nobody/pulls:this",
        "on.volume=training",
        f"on.namespace={namespace}",
        f"on.nodes={pods}",
        f"on.selectors={{{fake.MARK}: fake}}",
        f"on.tolerations=[{fake.MARK}]",
        "on.cpu=32",
    )
    launch, _, out = timed(folder, "launch", *words, "--json")
    run = json.loads(out)["name"]
    up = await_pods(namespace, run, pods)
    status, status_size, out = timed(folder, "status", run, "--json")
    found = json.loads(out)
    assert len(found["pods"]) == pods, len(found["pods"])
    ps, ps_size, _ = timed(folder, "ps")
    events, events_size, _ = timed(folder, "events", run)
    stop, _, _ = timed(folder, "stop", run)
    sizes = (status_size, ps_size, events_size)
    a, b, c = (f"{size:.0f}" for size in sizes)
    return [f"{launch:.2f}", f"{up:.1f}", f"{status:.2f}", a, f"{ps:.2f}", b, f"{events:.2f}", c, f"{stop:.1f}"]


def await_pods(namespace: str, run: str, pods: int) -> float:
    began = time.monotonic()
    kubectl = cluster.kubectl()
    while True:
        ready = kubectl("get", "job", run, "-n", namespace, "--output=jsonpath={.status.ready}")
        if ready and int(ready) == pods:
            return time.monotonic() - began
        if time.monotonic() - began > 1800:
            raise RuntimeError(f"{ready or 0} of {pods} pods are up after half an hour")
        time.sleep(1)


def timed(folder: Path, *words: str) -> tuple[float, float, str]:
    """Seconds, megabytes at the most, and what it printed."""
    with open(folder / "out", "w+") as out:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "stoker", *words], cwd=folder, stdout=out)
        _, code, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(code)
        if process.returncode:
            raise RuntimeError(f"stoker {' '.join(words)} ended with {process.returncode}")
        out.seek(0)
        return seconds, used.ru_maxrss / 1024, out.read()


if __name__ == "__main__":
    main()
